// collectives.cpp - each collective of c10d::Backend as operations of libsolo.
#include "c10d/backend.h"
#include "c10d/errors.h"

namespace solo_c10d
{

// ---- collectives ------------------------------------------------------------------------------

const at::Tensor &only(const Tensors &tensors, const char *name)
{
    TORCH_CHECK(tensors.size() == 1, "solo: ", name, " takes one tensor, not ", tensors.size());
    return tensors[0];
}

namespace
{

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

// One operation for each output and its input, as one call.
template <typename Opts, typename Add>
WorkPtr SoloBackend::run_pairs(const Tensors &outputs, const Tensors &inputs, Kind kind,
                               const Opts &opts, Add add)
{
    TORCH_CHECK(outputs.size() == inputs.size(), "solo: ", inputs.size(), " inputs, ",
                outputs.size(), " outputs");
    Call call;
    for (size_t i = 0; i < inputs.size(); i++) {
        add(call, outputs[i], inputs[i]);
    }
    return run(std::move(call), kind, inputs, outputs, opts.timeout, opts.asyncOp);
}

WorkPtr SoloBackend::gather_pairs(const Tensors &outputs, const Tensors &inputs, c10d::OpType type,
                                  const c10d::AllgatherOptions &opts)
{
    const auto add = [this](Call &call, const at::Tensor &output, const at::Tensor &input) {
        times_larger(output, input, size_, "all_gather_into_tensor");
        const auto dtype = dtype_of(input);
        call.add(SOLO_OP_ALLGATHER, dtype, {call.in(input)},
                 Call::cut(call.out(output), dtype, size_));
    };
    return run_pairs(outputs, inputs, {type, "solo:all_gather"}, opts, add);
}

WorkPtr SoloBackend::scatter_pairs(const Tensors &outputs, const Tensors &inputs, c10d::OpType type,
                                   const c10d::ReduceScatterOptions &opts)
{
    const auto add = [&](Call &call, const at::Tensor &output, const at::Tensor &input) {
        times_larger(input, output, size_, "reduce_scatter_tensor");
        const auto dtype = dtype_of(input);
        call.add(SOLO_OP_REDUCE_SCATTER, dtype, Call::cut(call.in(input), dtype, size_),
                 {call.out(output)}, 0, &opts.reduceOp);
    };
    return run_pairs(outputs, inputs, {type, "solo:reduce_scatter"}, opts, add);
}

WorkPtr SoloBackend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                     const c10d::AllgatherOptions &opts)
{
    return gather_pairs({output}, {input}, c10d::OpType::_ALLGATHER_BASE, opts);
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
    return gather_pairs(outputs, inputs, c10d::OpType::COALESCED, opts);
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

#if TORCH_VERSION_MINOR >= 14
WorkPtr SoloBackend::gather_single(at::Tensor &output, at::Tensor &input,
                                   const c10d::GatherOptions &opts)
{
    Call call;
    const auto dtype = dtype_of(input);
    Call::Parts parts;
    if (opts.rootRank == rank_) {
        times_larger(output, input, size_, "gather_single");
        parts = Call::cut(call.out(output), dtype, size_);
    }
    call.add(SOLO_OP_GATHER, dtype, {call.in(input)}, std::move(parts), opts.rootRank);
    return run(std::move(call), {c10d::OpType::GATHER, "solo:gather"}, Tensors{input},
               opts.rootRank == rank_ ? Tensors{output} : Tensors{}, opts.timeout, opts.asyncOp);
}
#endif

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
    return scatter_pairs({output}, {input}, c10d::OpType::_REDUCE_SCATTER_BASE, opts);
}

WorkPtr SoloBackend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                     const c10d::ReduceScatterOptions &opts)
{
    return scatter_pairs(outputs, inputs, c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, opts);
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
    if (auto side = device_side_now()) { // what was begun before comes before
        side->drain(opts.timeout > milliseconds(0) ? opts.timeout : options_.timeout);
    }
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
    check(solo_group_monitored_barrier(group(), timeout_ms(opts.timeout), wait_all_ranks));
}

} // namespace solo_c10d
