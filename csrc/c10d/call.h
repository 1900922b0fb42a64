// call.h - the tensors of one c10d call as operations of libsolo.
//
// A tensor that libsolo cannot take as it lies (strided, conjugate) is replaced by a packed
// copy, which is written back at the end if it was an output. Tensors of an accelerator are
// taken as they lie: their addresses mean something to that device alone (device.h).
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <deque>

#include "solo_group.h"

namespace solo_c10d
{

// How the elements of a tensor move, and whether they can be reduced.
solo_dtype dtype_of(const at::Tensor &tensor);

class Call
{
  public:
    using Parts = std::vector<solo_part>;

    // Pieces of memory. They live as long as the call.
    solo_part in(const at::Tensor &tensor);
    solo_part out(const at::Tensor &tensor);
    solo_part in_out(const at::Tensor &tensor);
    Parts in_each(const std::vector<at::Tensor> &tensors);
    Parts out_each(const std::vector<at::Tensor> &tensors);
    // One tensor cut along its first dimension, in `count` equal runs.
    static Parts cut(const solo_part &whole, solo_dtype dtype, size_t count);
    // The same in runs of so many elements.
    static Parts cut(const solo_part &whole, solo_dtype dtype, const std::vector<uint64_t> &counts);

    void add(solo_op_kind kind, solo_dtype dtype, Parts in, Parts out, int64_t root = 0,
             const c10d::ReduceOp *reduce = nullptr);

    // Once all is done: writes packed copies back, on the current stream of their device.
    void write_back();

    // Where all of the tensors are; the CPU if there are none.
    at::Device device() const
    {
        return device_;
    }
    // Whose memory the parts are.
    const std::vector<at::Tensor> &tensors() const
    {
        return keep_;
    }

    const std::vector<solo_op> &ops() const
    {
        return ops_;
    }

  private:
    solo_part packed(const at::Tensor &tensor, bool read, bool written);

    at::Device device_ = at::kCPU;
    std::vector<solo_op> ops_;
    std::deque<Parts> parts_; // what ops_ point to
    std::vector<at::Tensor> keep_;
    std::vector<std::pair<at::Tensor, at::Tensor>> back_; // where to, from where
};

} // namespace solo_c10d
