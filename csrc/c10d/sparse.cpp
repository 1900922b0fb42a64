// sparse.cpp - all_reduce of sparse tensors: how many entries each rank has, then indices and values
// of everyone, summed in rank order.
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "c10d/backend.h"
#include "c10d/errors.h"

namespace solo_c10d
{

namespace
{

// One call on its way. The group's thread asks for its steps; what comes next depends on what the
// step before brought.
class Sparse
{
  public:
    Sparse(c10::intrusive_ptr<SoloWork> work, at::Tensor tensor, int world)
        : work_(std::move(work)), tensor_(std::move(tensor)), counts_(world), indices_(world),
          values_(world)
    {
        if (!tensor_.device().is_cpu()) {
            own_ = tensor_.coalesce().cpu(); // by the caller's stream
        }
    }

    static int steps(void *context, const solo_op **ops, uint32_t *count)
    {
        auto &sparse = *static_cast<Sparse *>(context);
        try {
            sparse.next();
        } catch (const std::exception &error) {
            sparse.error_ = std::current_exception();
            return SOLO_ENOMEM;
        }
        *ops = sparse.call_.ops().data();
        *count = static_cast<uint32_t>(sparse.call_.ops().size());
        return 0;
    }

    // On the group's thread; nothing may be thrown into C.
    static void done(void *context, int rc, const char *text, uint32_t)
    {
        std::unique_ptr<Sparse> sparse(static_cast<Sparse *>(context));
        auto &error = sparse->error_;
        try {
            if (rc < 0) {
                error = error ? error : error_of(rc, text);
            } else {
                sparse->sum();
            }
        } catch (...) {
            error = std::current_exception();
        }
        sparse->work_->complete(error);
    }

  private:
    void gather(const at::Tensor &mine, const std::vector<at::Tensor> &all)
    {
        auto parts = call_.out_each(all);
        call_.add(SOLO_OP_ALLGATHER, dtype_of(mine), {call_.in(mine)}, std::move(parts));
    }

    void next()
    {
        call_ = Call();
        step_++;
        if (step_ == 1) {
            own_ = own_.defined() ? own_ : tensor_.coalesce(); // calls before this one are done
            count_ = at::full({1}, own_._nnz(), at::kLong);
            for (auto &count : counts_) {
                count = at::empty({1}, at::kLong);
            }
            gather(count_, counts_);
        } else if (step_ == 2) {
            for (size_t i = 0; i < counts_.size(); i++) {
                const auto entries = counts_[i].item<int64_t>();
                auto shape = own_.values().sizes().vec();
                shape[0] = entries;
                indices_[i] = at::empty({own_.sparse_dim(), entries}, at::kLong);
                values_[i] = at::empty(shape, own_.values().options());
            }
            gather(own_.indices().contiguous(), indices_);
            gather(own_.values().contiguous(), values_);
        }
    }

    void sum()
    {
        at::Tensor sum = at::_sparse_coo_tensor_unsafe(indices_[0], values_[0], own_.sizes());
        for (size_t i = 1; i < indices_.size(); i++) {
            sum = sum + at::_sparse_coo_tensor_unsafe(indices_[i], values_[i], own_.sizes());
        }
        tensor_.copy_(sum.coalesce()); // as gloo does: the same tensor object holds the sum
    }

    const c10::intrusive_ptr<SoloWork> work_;
    at::Tensor tensor_;
    at::Tensor own_, count_;
    std::vector<at::Tensor> counts_, indices_, values_;
    Call call_;
    int step_ = 0;
    std::exception_ptr error_;
};

} // namespace

WorkPtr SoloBackend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    const auto &tensor = only(tensors, "sparse all_reduce");
    TORCH_CHECK(tensor.is_sparse(), "solo: sparse all_reduce of a dense tensor");
    TORCH_CHECK_NOT_IMPLEMENTED(opts.reduceOp.op_ == c10d::ReduceOp::SUM,
                                "solo: sparse tensors can only be summed");
    calls_++;
    auto work =
        new_work({c10d::OpType::_ALLREDUCE_SPARSE, "solo:sparse_all_reduce"}, tensors, tensors);
    auto sparse = std::make_unique<Sparse>(work, tensor, size_);
    check(solo_group_post_steps(group(), Sparse::steps, timeout_ms(opts.timeout), Sparse::done,
                                sparse.get()));
    sparse.release(); // done's now
    if (!opts.asyncOp) {
        work->wait();
    }
    return enlist(work);
}

} // namespace solo_c10d
