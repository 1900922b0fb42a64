#include "c10d/intent.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "c10d/errors.h"

namespace solo_c10d
{

namespace
{

bool same_length_everywhere(solo_op_kind kind)
{
    return kind == SOLO_OP_BROADCAST || kind == SOLO_OP_ALLREDUCE || kind == SOLO_OP_REDUCE ||
           kind == SOLO_OP_GATHER;
}

bool reduces(solo_op_kind kind)
{
    return kind == SOLO_OP_ALLREDUCE || kind == SOLO_OP_REDUCE || kind == SOLO_OP_REDUCE_SCATTER;
}

bool rooted(solo_op_kind kind)
{
    return kind == SOLO_OP_BROADCAST || kind == SOLO_OP_REDUCE || kind == SOLO_OP_GATHER ||
           kind == SOLO_OP_SCATTER;
}

uint64_t longest(const solo_op &op)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < op.in_count; i++) {
        most = std::max(most, op.in[i].count);
    }
    for (uint32_t i = 0; i < op.out_count; i++) {
        most = std::max(most, op.out[i].count);
    }
    return most;
}

uint64_t count_of(const solo_op &op)
{
    return op.in_count == 1 ? op.in[0].count : op.out_count == 1 ? op.out[0].count : 0;
}

void mix(uint64_t &sum, uint64_t value)
{
    sum = (sum ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    sum ^= sum >> 29;
}

std::string text_of(const Intent &intent)
{
    const auto kind = static_cast<solo_op_kind>(intent.kind);
    std::string text = solo_op_name(kind);
    if (same_length_everywhere(kind)) {
        text += " of " + std::to_string(intent.count);
    }
    text += std::string(" ") + solo_dtype_name(static_cast<solo_dtype>(intent.dtype));
    if (reduces(kind)) {
        text += ", operator " + std::to_string(intent.reduce);
    }
    if (intent.factor != 0) {
        text += ", factor " + std::to_string(intent.factor);
    }
    if (rooted(kind)) {
        text += ", root " + std::to_string(intent.root);
    }
    if (intent.ops != 1) {
        text += ", and " + std::to_string(intent.ops - 1) + " more calls as one";
    }
    return text;
}

bool same(const Intent &a, const Intent &b)
{
    return a.ops == b.ops && a.kind == b.kind && a.dtype == b.dtype && a.reduce == b.reduce &&
           a.root == b.root && a.count == b.count && a.sum == b.sum && a.factor <= b.factor &&
           a.factor >= b.factor;
}

} // namespace

Intent intent_of(const std::vector<solo_op> &ops)
{
    Intent intent{};
    const solo_op &first = ops.at(0);
    intent.ops = ops.size();
    intent.kind = first.kind;
    intent.dtype = first.dtype;
    intent.reduce = reduces(first.kind) ? first.reduce : 0;
    intent.root = rooted(first.kind) ? first.root : 0;
    intent.count = same_length_everywhere(first.kind) ? count_of(first) : 0;
    intent.factor = first.factor;
    for (size_t i = 1; i < ops.size(); i++) { // of several all lengths are the same everywhere
        for (uint64_t value : {uint64_t(ops[i].kind), uint64_t(ops[i].dtype),
                               uint64_t(ops[i].reduce), longest(ops[i])}) {
            mix(intent.sum, value);
        }
    }
    if (ops.size() > 1) {
        mix(intent.sum, longest(first));
    }
    intent.most = longest(first);
    return intent;
}

Verdict judge(const std::vector<Intent> &all, const std::vector<solo_op> &ops)
{
    for (size_t rank = 1; rank < all.size(); rank++) {
        if (!same(all[0], all[rank])) {
            throw_error(SOLO_EMISMATCH, "ranks do different things: rank 0 calls " +
                                            text_of(all[0]) + ", rank " + std::to_string(rank) +
                                            " calls " + text_of(all[rank]) +
                                            (text_of(all[0]) == text_of(all[rank])
                                                 ? ", with other lengths or dtypes further on"
                                                 : ""));
        }
    }
    Verdict verdict;
    verdict.nccl = verdict.adjoin = true;
    std::set<uint64_t> gpus;
    uint64_t most = 0;
    for (const auto &intent : all) {
        // NCCL refuses two ranks on one GPU.
        verdict.nccl = verdict.nccl && intent.nccl && gpus.insert(intent.gpu).second;
        verdict.adjoin = verdict.adjoin && intent.adjoins;
        most = std::max(most, intent.most);
    }
    for (const auto &op : ops) {
        verdict.most.push_back(longest(op));
    }
    verdict.most[0] = ops.size() == 1 ? most : verdict.most[0];
    return verdict;
}

} // namespace solo_c10d
