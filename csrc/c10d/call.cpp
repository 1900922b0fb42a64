#include "c10d/call.h"

namespace solo_c10d
{

solo_dtype dtype_of(const at::Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kFloat:
        return SOLO_F32;
    case at::kDouble:
        return SOLO_F64;
    case at::kHalf:
        return SOLO_F16;
    case at::kBFloat16:
        return SOLO_BF16;
    case at::kFloat8_e4m3fn:
        return SOLO_F8E4M3;
    case at::kFloat8_e5m2:
        return SOLO_F8E5M2;
    case at::kFloat8_e4m3fnuz:
        return SOLO_F8E4M3Z;
    case at::kFloat8_e5m2fnuz:
        return SOLO_F8E5M2Z;
    case at::kFloat8_e8m0fnu:
        return SOLO_F8E8M0;
    case at::kChar:
        return SOLO_I8;
    case at::kByte:
        return SOLO_U8;
    case at::kShort:
        return SOLO_I16;
    case at::kUInt16:
        return SOLO_U16;
    case at::kInt:
        return SOLO_I32;
    case at::kUInt32:
        return SOLO_U32;
    case at::kLong:
        return SOLO_I64;
    case at::kUInt64:
        return SOLO_U64;
    case at::kBool:
        return SOLO_BOOL;
    case at::kComplexFloat:
        return SOLO_C64;
    case at::kComplexDouble:
        return SOLO_C128;
    case at::kComplexHalf:
        return SOLO_C32;
    default:
        return SOLO_BYTES; // quantised and packed ones move, and cannot be reduced
    }
}

solo_part Call::packed(const at::Tensor &tensor, bool read, bool written)
{
    if (keep_.empty()) {
        device_ = tensor.device();
    }
    TORCH_CHECK(tensor.device() == device_, "solo: one call with tensors on ", device_, " and on ",
                tensor.device());
    TORCH_CHECK(tensor.layout() == at::kStrided, "solo: dense tensors only here, not ",
                tensor.layout());
    at::Tensor memory = tensor;
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
        memory = read ? tensor.resolve_conj().resolve_neg().contiguous()
                      : at::empty(tensor.sizes(), tensor.options());
        if (written) {
            back_.emplace_back(tensor, memory);
        }
    }
    keep_.push_back(memory);
    uint64_t count = memory.numel();
    if (dtype_of(tensor) == SOLO_BYTES) {
        count *= memory.itemsize();
    }
    return {count ? memory.data_ptr() : nullptr, count};
}

solo_part Call::in(const at::Tensor &tensor)
{
    return packed(tensor, true, false);
}

solo_part Call::out(const at::Tensor &tensor)
{
    return packed(tensor, false, true);
}

solo_part Call::in_out(const at::Tensor &tensor)
{
    return packed(tensor, true, true);
}

Call::Parts Call::in_each(const std::vector<at::Tensor> &tensors)
{
    Parts parts;
    for (const auto &tensor : tensors) {
        parts.push_back(in(tensor));
    }
    return parts;
}

Call::Parts Call::out_each(const std::vector<at::Tensor> &tensors)
{
    Parts parts;
    for (const auto &tensor : tensors) {
        parts.push_back(out(tensor));
    }
    return parts;
}

Call::Parts Call::cut(const solo_part &whole, solo_dtype dtype, size_t count)
{
    return cut(whole, dtype, std::vector<uint64_t>(count, whole.count / count));
}

Call::Parts Call::cut(const solo_part &whole, solo_dtype dtype, const std::vector<uint64_t> &counts)
{
    Parts parts;
    auto *at = static_cast<uint8_t *>(whole.bytes);
    for (uint64_t count : counts) {
        parts.push_back({count ? at : nullptr, count});
        at += count * solo_dtype_bytes(dtype);
    }
    return parts;
}

namespace
{

double factor_of(const c10d::ReduceOp &op)
{
    const auto *supplement = dynamic_cast<c10d::PreMulSumSupplement *>(op.supplement_.get());
    TORCH_CHECK(supplement, "solo: PREMUL_SUM without its factor");
    return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                               : supplement->double_factor;
}

solo_reduce reduce_of(const c10d::ReduceOp &op)
{
    switch (op.op_) {
    case c10d::ReduceOp::SUM:
        return SOLO_REDUCE_SUM;
    case c10d::ReduceOp::AVG:
        return SOLO_REDUCE_AVG;
    case c10d::ReduceOp::PRODUCT:
        return SOLO_REDUCE_PRODUCT;
    case c10d::ReduceOp::MIN:
        return SOLO_REDUCE_MIN;
    case c10d::ReduceOp::MAX:
        return SOLO_REDUCE_MAX;
    case c10d::ReduceOp::BAND:
        return SOLO_REDUCE_BAND;
    case c10d::ReduceOp::BOR:
        return SOLO_REDUCE_BOR;
    case c10d::ReduceOp::BXOR:
        return SOLO_REDUCE_BXOR;
    case c10d::ReduceOp::PREMUL_SUM:
        return SOLO_REDUCE_PREMUL;
    case c10d::ReduceOp::UNUSED:
        break;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "solo: reduce operator ", static_cast<int>(op.op_),
                                " is not known to this version of solo");
}

} // namespace

void Call::add(solo_op_kind kind, solo_dtype dtype, Parts in, Parts out, int64_t root,
               const c10d::ReduceOp *reduce)
{
    solo_op op{};
    op.kind = kind;
    op.dtype = dtype;
    op.root = root < 0 ? UINT32_MAX : static_cast<uint32_t>(root);
    if (reduce) {
        op.reduce = reduce_of(*reduce);
        op.factor = op.reduce == SOLO_REDUCE_PREMUL ? factor_of(*reduce) : 0;
    }
    op.in_count = static_cast<uint32_t>(in.size());
    op.in = parts_.emplace_back(std::move(in)).data();
    op.out_count = static_cast<uint32_t>(out.size());
    op.out = parts_.emplace_back(std::move(out)).data();
    ops_.push_back(op);
}

void Call::write_back()
{
    for (auto &[to, from] : back_) {
        to.copy_(from);
    }
}

} // namespace solo_c10d
