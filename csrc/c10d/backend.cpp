#include "c10d/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/errors.h"

namespace solo_c10d
{

// ---- opening ----------------------------------------------------------------------------------

namespace
{

uint32_t timeout_ms(milliseconds timeout)
{
    if (timeout <= milliseconds(0)) {
        return 0; // the group's
    }
    return static_cast<uint32_t>(std::min<int64_t>(timeout.count(), UINT32_MAX));
}

std::string card_key(const OpenOptions &options, int rank)
{
    return "solo/card/" + std::to_string(options.generation) + "/" + std::to_string(rank);
}

// How often this process has opened a group of this name before: the same on every rank. A store
// may be used to form a group again, while others still withdraw their old cards from it.
uint64_t next_generation(const std::string &name)
{
    static std::mutex mutex;
    static std::unordered_map<std::string, uint64_t> opened;
    std::lock_guard<std::mutex> guard(mutex);
    return opened[name]++;
}

} // namespace

std::vector<std::string> exchange_cards(const c10::intrusive_ptr<c10d::Store> &store,
                                        const OpenOptions &options, const std::string &own)
{
    store->set(card_key(options, options.rank), std::vector<uint8_t>(own.begin(), own.end()));
    std::vector<std::string> keys;
    for (int i = 0; i < options.size; i++) {
        keys.push_back(card_key(options, i));
    }
    try {
        store->wait(keys, options.timeout);
    } catch (const std::exception &error) {
        std::string missing;
        for (int i = 0; i < options.size; i++) {
            if (!store->check({keys[i]})) {
                missing += (missing.empty() ? "" : ", ") + std::to_string(i);
            }
        }
        throw_error(SOLO_ETIMEDOUT, "group \"" + options.name + "\": rank " + missing +
                                        " did not come within " +
                                        std::to_string(options.timeout.count() / 1000.0) +
                                        " s: see why it did not start or stopped");
    }
    std::vector<std::vector<uint8_t>> values;
    if (store->hasExtendedApi()) {
        values = store->multiGet(keys);
    } else {
        for (const auto &key : keys) {
            values.push_back(store->get(key));
        }
    }
    std::vector<std::string> cards;
    for (const auto &value : values) {
        cards.emplace_back(value.begin(), value.end());
    }
    return cards;
}

namespace
{

// The same store may be used to form the group again: an old card would be met first.
void withdraw_card(const c10::intrusive_ptr<c10d::Store> &store, const OpenOptions &options)
{
    try {
        store->deleteKey(card_key(options, options.rank));
    } catch (const std::exception &) {
        return; // a store that cannot delete, or is gone: nobody will read it either
    }
}

} // namespace

namespace
{

// Which ranks share memory: those of one host, unless the environment says otherwise.
std::string host_id_of(const OpenOptions &options)
{
    const char *shm = std::getenv("SOLO_GROUP_SHM");
    if (shm && std::string(shm) == "0") {
        return "alone-" + std::to_string(options.rank);
    }
    const char *id = std::getenv("SOLO_HOST_ID");
    return id ? id : "";
}

} // namespace

SoloBackend::SoloBackend(const c10::intrusive_ptr<c10d::Store> &store, const OpenOptions &options)
    : Backend(options.rank, options.size), options_(options)
{
    options_.generation = next_generation(options.name);
    solo_group_config config{};
    config.size = sizeof config;
    config.rank = static_cast<uint32_t>(options.rank);
    config.world = static_cast<uint32_t>(options.size);
    config.timeout_ms = timeout_ms(options.timeout);
    config.name = options_.name.c_str();
    config.store_host = options_.store_host.c_str();
    const auto host_id = host_id_of(options);
    config.host_id = host_id.c_str();
    config.interface = std::getenv("SOLO_SOCKET_IFNAME");
    char card[SOLO_CARD_MAX];
    check(solo_group_prepare(&config, &group_, card));
    try {
        const auto cards = exchange_cards(store, options_, card);
        std::vector<const char *> texts;
        for (const auto &text : cards) {
            texts.push_back(text.c_str());
        }
        check(solo_group_connect(group_, texts.data(), 0));
    } catch (...) {
        withdraw_card(store, options_);
        solo_group_close(group_);
        throw;
    }
    withdraw_card(store, options_); // all have met, so all have read it
    init();
}

SoloBackend::~SoloBackend()
{
    solo_group_close(group_);
}

// ---- running ----------------------------------------------------------------------------------

namespace
{

// What an asynchronous call keeps alive until it is done.
struct Pending {
    c10::intrusive_ptr<SoloWork> work;
    Call call;
};

void finish(SoloWork &work, Call &call, int rc, const std::string &text)
{
    std::exception_ptr error;
    try {
        if (rc < 0) {
            error = error_of(rc, text);
        } else {
            call.write_back();
        }
    } catch (...) {
        error = std::current_exception();
    }
    work.complete(error);
}

// On the group's thread; nothing may be thrown into C.
void on_done(void *context, int rc, const char *text, uint32_t source)
{
    std::unique_ptr<Pending> pending(static_cast<Pending *>(context));
    try {
        pending->work->set_source(static_cast<int>(source));
        finish(*pending->work, pending->call, rc, text);
    } catch (const std::exception &error) {
        TORCH_WARN("solo: a callback on a finished call failed: ", error.what());
    }
}

} // namespace

c10::intrusive_ptr<SoloWork> SoloBackend::new_work(Kind kind, const std::optional<Tensors> &inputs,
                                                   Tensors outputs)
{
    auto work = c10::make_intrusive<SoloWork>(rank_, kind.type, kind.title, inputs,
                                              std::move(outputs), calls_.load());
    if (onCompletionHook_) {
        work->on_complete([hook = onCompletionHook_](SoloWork &done) {
            const auto now = std::chrono::steady_clock::now();
            hook(std::make_shared<c10d::WorkInfo>(done.type(), done.getSequencenumber(),
                                                  done.begun(), now, now - done.begun()));
        });
    }
    return work;
}

WorkPtr SoloBackend::enlist(c10::intrusive_ptr<SoloWork> work)
{
    std::lock_guard<std::mutex> guard(mutex_);
    if (coalescing_) {
        coalesced_.push_back(work);
    }
    return work;
}

WorkPtr SoloBackend::run(Call call, Kind kind, const std::optional<Tensors> &inputs,
                         Tensors outputs, milliseconds timeout, bool async)
{
    calls_++;
    auto work = new_work(kind, inputs, std::move(outputs));
    const auto count = static_cast<uint32_t>(call.ops().size());
    if (!async) {
        const int rc = solo_group_run(group_, call.ops().data(), count, timeout_ms(timeout));
        finish(*work, call, rc, rc < 0 ? solo_error_text() : "");
        if (work->exception()) {
            std::rethrow_exception(work->exception());
        }
        return enlist(work);
    }
    auto pending = std::make_unique<Pending>(Pending{work, std::move(call)});
    check(solo_group_post(group_, pending->call.ops().data(), count, timeout_ms(timeout), on_done,
                          pending.get()));
    pending.release(); // on_done's now
    return enlist(work);
}

// ---- collectives ------------------------------------------------------------------------------

namespace
{

const at::Tensor &only(const Tensors &tensors, const char *name)
{
    TORCH_CHECK(tensors.size() == 1, "solo: ", name, " takes one tensor, not ", tensors.size());
    return tensors[0];
}

const Tensors &only(const TensorLists &lists, const char *name)
{
    TORCH_CHECK(lists.size() == 1, "solo: ", name, " takes one list of tensors, not ",
                lists.size());
    return lists[0];
}

void same_dtype(const Tensors &tensors, const at::Tensor &as, const char *name)
{
    for (const auto &tensor : tensors) {
        TORCH_CHECK(tensor.scalar_type() == as.scalar_type(), "solo: ", name, " of ",
                    as.scalar_type(), " and ", tensor.scalar_type(),
                    ": one call takes tensors of one dtype");
    }
}

void times_larger(const at::Tensor &large, const at::Tensor &small, int times, const char *name)
{
    TORCH_CHECK(large.scalar_type() == small.scalar_type() &&
                    large.numel() == small.numel() * times,
                "solo: ", name, " of ", times, " ranks: ", large.numel(), " ", large.scalar_type(),
                " elements are not ", times, " times ", small.numel(), " ", small.scalar_type());
}

} // namespace

WorkPtr SoloBackend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    const auto &tensor = only(tensors, "broadcast");
    Call call;
    const auto part = opts.rootRank == rank_ ? call.in(tensor) : call.out(tensor);
    call.add(SOLO_OP_BROADCAST, dtype_of(tensor), {}, {part}, opts.rootRank);
    return run(std::move(call), {c10d::OpType::BROADCAST, "solo:broadcast"}, tensors, tensors,
               opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    const auto &tensor = only(tensors, "all_reduce");
    if (tensor.is_sparse()) {
        return allreduce_sparse(tensors, opts);
    }
    Call call;
    const auto part = call.in_out(tensor);
    call.add(SOLO_OP_ALLREDUCE, dtype_of(tensor), {part}, {part}, 0, &opts.reduceOp);
    return run(std::move(call), {c10d::OpType::ALLREDUCE, "solo:all_reduce"}, tensors, tensors,
               opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::allreduce_coalesced(Tensors &tensors,
                                         const c10d::AllreduceCoalescedOptions &opts)
{
    Call call;
    for (const auto &tensor : tensors) {
        const auto part = call.in_out(tensor);
        call.add(SOLO_OP_ALLREDUCE, dtype_of(tensor), {part}, {part}, 0, &opts.reduceOp);
    }
    return run(std::move(call), {c10d::OpType::ALLREDUCE_COALESCED, "solo:all_reduce"}, tensors,
               tensors, opts.timeout, opts.asyncOp);
}

// Sizes first, then indices and values of everyone, summed in rank order. Done before it
// returns: the later steps depend on what the first ones bring.
WorkPtr SoloBackend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    const auto &tensor = only(tensors, "sparse all_reduce");
    TORCH_CHECK(tensor.is_sparse(), "solo: sparse all_reduce of a dense tensor");
    TORCH_CHECK_NOT_IMPLEMENTED(opts.reduceOp.op_ == c10d::ReduceOp::SUM,
                                "solo: sparse tensors can only be summed");
    auto work =
        new_work({c10d::OpType::_ALLREDUCE_SPARSE, "solo:sparse_all_reduce"}, tensors, tensors);
    const auto own = tensor.coalesce();
    auto gather = [&](const at::Tensor &mine, const Tensors &all) {
        Call call;
        auto parts = call.out_each(all);
        call.add(SOLO_OP_ALLGATHER, dtype_of(mine), {call.in(mine)}, std::move(parts));
        check(solo_group_run(group_, call.ops().data(), 1, timeout_ms(opts.timeout)));
    };
    Tensors counts, indices, values;
    for (int i = 0; i < size_; i++) {
        counts.push_back(at::empty({1}, at::kLong));
    }
    gather(at::full({1}, own._nnz(), at::kLong), counts);
    for (const auto &count : counts) {
        const auto nnz = count.item<int64_t>();
        auto shape = own.values().sizes().vec();
        shape[0] = nnz;
        indices.push_back(at::empty({own.sparse_dim(), nnz}, at::kLong));
        values.push_back(at::empty(shape, own.values().options()));
    }
    gather(own.indices().contiguous(), indices);
    gather(own.values().contiguous(), values);
    at::Tensor sum = at::_sparse_coo_tensor_unsafe(indices[0], values[0], own.sizes());
    for (int i = 1; i < size_; i++) {
        sum = sum + at::_sparse_coo_tensor_unsafe(indices[i], values[i], own.sizes());
    }
    sum = sum.coalesce();
    auto into = tensor; // as gloo does: the same tensor object holds the sum
    into.copy_(sum);
    work->complete();
    return enlist(work);
}

WorkPtr SoloBackend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    const auto &tensor = only(tensors, "reduce");
    Call call;
    const bool root = opts.rootRank == rank_;
    const auto part = root ? call.in_out(tensor) : call.in(tensor);
    call.add(SOLO_OP_REDUCE, dtype_of(tensor), {part}, root ? Call::Parts{part} : Call::Parts{},
             opts.rootRank, &opts.reduceOp);
    return run(std::move(call), {c10d::OpType::REDUCE, "solo:reduce"}, tensors, tensors,
               opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::allgather(TensorLists &outputs, Tensors &inputs,
                               const c10d::AllgatherOptions &opts)
{
    const auto &input = only(inputs, "all_gather");
    const auto &list = only(outputs, "all_gather");
    same_dtype(list, input, "all_gather");
    Call call;
    auto parts = call.out_each(list);
    call.add(SOLO_OP_ALLGATHER, dtype_of(input), {call.in(input)}, std::move(parts));
    return run(std::move(call), {c10d::OpType::ALLGATHER, "solo:all_gather"}, inputs, list,
               opts.timeout, opts.asyncOp);
}

namespace
{

void add_allgather(Call &call, const at::Tensor &output, const at::Tensor &input, int size)
{
    times_larger(output, input, size, "all_gather_into_tensor");
    const auto dtype = dtype_of(input);
    call.add(SOLO_OP_ALLGATHER, dtype, {call.in(input)}, Call::cut(call.out(output), dtype, size));
}

void add_reduce_scatter(Call &call, const at::Tensor &output, const at::Tensor &input, int size,
                        const c10d::ReduceOp &op)
{
    times_larger(input, output, size, "reduce_scatter_tensor");
    const auto dtype = dtype_of(input);
    call.add(SOLO_OP_REDUCE_SCATTER, dtype, Call::cut(call.in(input), dtype, size),
             {call.out(output)}, 0, &op);
}

} // namespace

WorkPtr SoloBackend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                     const c10d::AllgatherOptions &opts)
{
    Call call;
    add_allgather(call, output, input, size_);
    return run(std::move(call), {c10d::OpType::_ALLGATHER_BASE, "solo:all_gather"}, Tensors{input},
               {output}, opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                         const c10d::AllgatherOptions &opts)
{
    // outputs[rank][i] belongs to inputs[i].
    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_),
                "solo: all_gather_coalesced takes a list for each of ", size_, " ranks, not ",
                outputs.size());
    Call call;
    Tensors flat;
    for (size_t i = 0; i < inputs.size(); i++) {
        Tensors list;
        for (const auto &of_rank : outputs) {
            TORCH_CHECK(of_rank.size() == inputs.size(), "solo: all_gather_coalesced of ",
                        inputs.size(), " tensors into ", of_rank.size());
            list.push_back(of_rank[i]);
        }
        same_dtype(list, inputs[i], "all_gather_coalesced");
        auto parts = call.out_each(list);
        call.add(SOLO_OP_ALLGATHER, dtype_of(inputs[i]), {call.in(inputs[i])}, std::move(parts));
        flat.insert(flat.end(), list.begin(), list.end());
    }
    return run(std::move(call), {c10d::OpType::ALLGATHER_COALESCED, "solo:all_gather"}, inputs,
               std::move(flat), opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                     const c10d::AllgatherOptions &opts)
{
    TORCH_CHECK(outputs.size() == inputs.size(), "solo: ", inputs.size(), " inputs, ",
                outputs.size(), " outputs");
    Call call;
    for (size_t i = 0; i < inputs.size(); i++) {
        add_allgather(call, outputs[i], inputs[i], size_);
    }
    return run(std::move(call), {c10d::OpType::COALESCED, "solo:all_gather"}, inputs, outputs,
               opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts)
{
    const auto &input = only(inputs, "gather");
    Call call;
    Call::Parts parts;
    Tensors list;
    if (opts.rootRank == rank_) {
        list = only(outputs, "gather");
        same_dtype(list, input, "gather");
        parts = call.out_each(list);
    } else {
        TORCH_CHECK(outputs.empty() || outputs[0].empty(), "solo: gather to rank ", opts.rootRank,
                    ": only it may give outputs");
    }
    call.add(SOLO_OP_GATHER, dtype_of(input), {call.in(input)}, std::move(parts), opts.rootRank);
    return run(std::move(call), {c10d::OpType::GATHER, "solo:gather"}, inputs, std::move(list),
               opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::scatter(Tensors &outputs, TensorLists &inputs,
                             const c10d::ScatterOptions &opts)
{
    const auto &output = only(outputs, "scatter");
    Call call;
    Call::Parts parts;
    Tensors list;
    if (opts.rootRank == rank_) {
        list = only(inputs, "scatter");
        same_dtype(list, output, "scatter");
        parts = call.in_each(list);
    } else {
        TORCH_CHECK(inputs.empty() || inputs[0].empty(), "solo: scatter from rank ", opts.rootRank,
                    ": only it may give inputs");
    }
    call.add(SOLO_OP_SCATTER, dtype_of(output), std::move(parts), {call.out(output)},
             opts.rootRank);
    return run(std::move(call), {c10d::OpType::SCATTER, "solo:scatter"},
               list.empty() ? std::optional<Tensors>() : list, outputs, opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                    const c10d::ReduceScatterOptions &opts)
{
    const auto &output = only(outputs, "reduce_scatter");
    const auto &list = only(inputs, "reduce_scatter");
    same_dtype(list, output, "reduce_scatter");
    Call call;
    auto parts = call.in_each(list);
    call.add(SOLO_OP_REDUCE_SCATTER, dtype_of(output), std::move(parts), {call.out(output)}, 0,
             &opts.reduceOp);
    return run(std::move(call), {c10d::OpType::REDUCE_SCATTER, "solo:reduce_scatter"}, list,
               outputs, opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                          const c10d::ReduceScatterOptions &opts)
{
    Call call;
    add_reduce_scatter(call, output, input, size_, opts.reduceOp);
    return run(std::move(call), {c10d::OpType::_REDUCE_SCATTER_BASE, "solo:reduce_scatter"},
               Tensors{input}, {output}, opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                     const c10d::ReduceScatterOptions &opts)
{
    TORCH_CHECK(outputs.size() == inputs.size(), "solo: ", inputs.size(), " inputs, ",
                outputs.size(), " outputs");
    Call call;
    for (size_t i = 0; i < inputs.size(); i++) {
        add_reduce_scatter(call, outputs[i], inputs[i], size_, opts.reduceOp);
    }
    return run(std::move(call),
               {c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "solo:reduce_scatter"}, inputs,
               outputs, opts.timeout, opts.asyncOp);
}

namespace
{

// Rows for each rank as elements for each rank; no rows: equal shares.
std::vector<uint64_t> elements_of(const at::Tensor &tensor, const std::vector<int64_t> &rows,
                                  int size, const char *which)
{
    const int64_t total = tensor.dim() ? tensor.size(0) : tensor.numel();
    if (rows.empty()) {
        TORCH_CHECK(total % size == 0, "solo: all_to_all_single without split sizes: ", total, " ",
                    which, " rows cannot be shared out to ", size, " ranks");
        return std::vector<uint64_t>(size, tensor.numel() / size);
    }
    TORCH_CHECK(rows.size() == static_cast<size_t>(size), "solo: all_to_all_single needs ", size,
                " ", which, " split sizes, not ", rows.size());
    const int64_t each = total ? tensor.numel() / total : 0;
    int64_t sum = 0;
    std::vector<uint64_t> elements;
    for (int64_t count : rows) {
        TORCH_CHECK(count >= 0, "solo: a negative split size: ", count);
        sum += count;
        elements.push_back(static_cast<uint64_t>(count * each));
    }
    TORCH_CHECK(sum == total, "solo: the ", which, " split sizes add up to ", sum, ", not to the ",
                total, " rows of the tensor");
    return elements;
}

} // namespace

WorkPtr SoloBackend::alltoall_base(at::Tensor &output, at::Tensor &input,
                                   std::vector<int64_t> &output_rows,
                                   std::vector<int64_t> &input_rows,
                                   const c10d::AllToAllOptions &opts)
{
    same_dtype({output}, input, "all_to_all_single");
    const auto dtype = dtype_of(input);
    Call call;
    auto in = Call::cut(call.in(input), dtype, elements_of(input, input_rows, size_, "input"));
    auto out =
        Call::cut(call.out(output), dtype, elements_of(output, output_rows, size_, "output"));
    call.add(SOLO_OP_ALLTOALL, dtype, std::move(in), std::move(out));
    return run(std::move(call), {c10d::OpType::ALLTOALL_BASE, "solo:all_to_all"}, Tensors{input},
               {output}, opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts)
{
    TORCH_CHECK(inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(),
                "solo: all_to_all of ", size_, " ranks with ", inputs.size(), " inputs and ",
                outputs.size(), " outputs");
    same_dtype(inputs, inputs[0], "all_to_all");
    same_dtype(outputs, inputs[0], "all_to_all");
    Call call;
    auto in = call.in_each(inputs);
    auto out = call.out_each(outputs);
    call.add(SOLO_OP_ALLTOALL, dtype_of(inputs[0]), std::move(in), std::move(out));
    return run(std::move(call), {c10d::OpType::ALLTOALL, "solo:all_to_all"}, inputs, outputs,
               opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::barrier(const c10d::BarrierOptions &opts)
{
    Call call;
    call.add(SOLO_OP_BARRIER, SOLO_BYTES, {}, {});
    return run(std::move(call), {c10d::OpType::BARRIER, "solo:barrier"}, std::nullopt, {},
               opts.timeout, opts.asyncOp);
}

void SoloBackend::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks)
{
    if (opts.timeout == milliseconds(0)) {
        throw_error(SOLO_ETIMEDOUT,
                    "Rank " + std::to_string(rank_) + " timed out in monitoredBarrier after 0 ms");
    }
    check(solo_group_monitored_barrier(group_, timeout_ms(opts.timeout), wait_all_ranks));
}

// ---- messages ---------------------------------------------------------------------------------

WorkPtr SoloBackend::message(Tensors &tensors, Kind kind, int peer, int tag, bool receive)
{
    const auto &tensor = only(tensors, kind.title);
    auto work = new_work(kind, tensors, receive ? tensors : Tensors{});
    auto pending = std::make_unique<Pending>();
    pending->work = work;
    const auto part = receive ? pending->call.out(tensor) : pending->call.in(tensor);
    const uint64_t size = static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
    const auto rank = static_cast<uint32_t>(peer);
    const auto wire_tag = static_cast<uint64_t>(static_cast<int64_t>(tag));
    check(receive ? solo_group_receive(group_, rank, wire_tag, part.bytes, size, 0, on_done,
                                       pending.get())
                  : solo_group_send(group_, rank, wire_tag, part.bytes, size, 0, on_done,
                                    pending.get()));
    pending.release(); // on_done's now
    return enlist(work);
}

WorkPtr SoloBackend::send(Tensors &tensors, int to, int tag)
{
    return message(tensors, {c10d::OpType::SEND, "solo:send"}, to, tag, false);
}

WorkPtr SoloBackend::recv(Tensors &tensors, int from, int tag)
{
    return message(tensors, {c10d::OpType::RECV, "solo:recv"}, from, tag, true);
}

WorkPtr SoloBackend::recvAnysource(Tensors &tensors, int tag)
{
    return message(tensors, {c10d::OpType::RECVANYSOURCE, "solo:recvAnySource"},
                   static_cast<int>(SOLO_ANY_SOURCE), tag, true);
}

// ---- coalescing -------------------------------------------------------------------------------

void SoloBackend::startCoalescing()
{
    std::lock_guard<std::mutex> guard(mutex_);
    TORCH_CHECK(!coalescing_, "solo: coalescing was begun twice");
    coalescing_ = true;
}

WorkPtr SoloBackend::endCoalescing()
{
    std::vector<WorkPtr> works;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        TORCH_CHECK(coalescing_, "solo: coalescing was not begun");
        coalescing_ = false;
        works.swap(coalesced_);
    }
    auto all = new_work({c10d::OpType::COALESCED, "solo:coalesced"}, std::nullopt, {});
    // The last of them completes the whole, with the first error there was.
    struct Rest {
        std::mutex mutex;
        size_t count;
        std::exception_ptr error;
    };
    auto rest = std::make_shared<Rest>();
    rest->count = works.size() + 1;
    auto one_less = [all, rest](const std::exception_ptr &error) {
        std::unique_lock<std::mutex> guard(rest->mutex);
        rest->error = rest->error ? rest->error : error;
        if (--rest->count == 0) {
            guard.unlock();
            all->complete(rest->error);
        }
    };
    for (const auto &work : works) {
        work->getFuture()->addCallback([one_less](c10::ivalue::Future &future) {
            one_less(future.hasError() ? future.exception_ptr() : nullptr);
        });
    }
    one_less(nullptr);
    return all;
}

// ---- life -------------------------------------------------------------------------------------

c10::intrusive_ptr<c10d::Backend::Options> SoloBackend::getBackendOptions()
{
    auto options = c10::make_intrusive<Options>("solo", options_.timeout);
    options->group_name = options_.name;
    return options;
}

void SoloBackend::setTimeout(milliseconds timeout)
{
    options_.timeout = timeout;
    solo_group_set_timeout(group_, timeout_ms(timeout));
}

uint64_t SoloBackend::getSequenceNumberForGroup()
{
    return calls_;
}

c10::intrusive_ptr<c10d::Backend> SoloBackend::split(const c10::intrusive_ptr<c10d::Store> &store,
                                                     const std::vector<int> &ranks,
                                                     const c10::intrusive_ptr<Options> &opts)
{
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) {
        return nullptr;
    }
    OpenOptions options = options_;
    options.rank = static_cast<int>(mine - ranks.begin());
    options.size = static_cast<int>(ranks.size());
    if (opts) {
        options.timeout = opts->timeout;
        options.name = opts->group_name;
    }
    return c10::make_intrusive<SoloBackend>(
        c10::make_intrusive<c10d::PrefixStore>("solo/split/" + options.name, store), options);
}

void SoloBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook)
{
    TORCH_CHECK(!onCompletionHook_, "solo: an on-completion hook is registered already");
    onCompletionHook_ = std::move(hook);
}

void SoloBackend::waitForPendingWorks()
{
    check(solo_group_shutdown(group_, 0));
}

c10d::ErrorType SoloBackend::getError()
{
    switch (solo_group_health(group_)) {
    case 0:
        return c10d::ErrorType::SUCCESS;
    case SOLO_ETIMEDOUT:
        return c10d::ErrorType::TIMEOUT;
    case SOLO_ECLOSED:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

void SoloBackend::abort()
{
    solo_group_abort(group_, nullptr);
}

void SoloBackend::shutdown()
{
    if (solo_group_shutdown(group_, 0) < 0 && solo_group_health(group_) == 0) {
        TORCH_WARN("solo: ", solo_error_text());
    }
}

std::unordered_map<std::string, uint64_t> SoloBackend::getMemoryStats()
{
    solo_group_figures stats{};
    solo_group_stats(group_, &stats);
    return {{"shared_bytes", stats.shared_bytes},
            {"staging_bytes", stats.staging_bytes},
            {"local_ranks", stats.local_ranks},
            {"hosts", stats.hosts},
            {"connections", stats.connections}};
}

} // namespace solo_c10d
