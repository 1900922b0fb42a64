// work.h - one call on its way: its tensors, its future, how it ended.
#pragma once

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "solo_group.h"

namespace solo_c10d
{

class SoloWork : public c10d::Work
{
  public:
    // `title` must be a literal: the profiler keeps the pointer.
    SoloWork(int rank, c10d::OpType type, const char *title,
             const std::optional<std::vector<at::Tensor>> &inputs, std::vector<at::Tensor> outputs,
             uint64_t sequence);

    void complete(std::exception_ptr error = nullptr); // once, from any thread

    // For tensors of an accelerator, before complete(): what is left is in `event`, which a
    // stream that wants the results waits for. complete() is then called with the stream
    // current that brings them.
    void ends_with(std::shared_ptr<c10::Event> event);
    void on_device(at::Device device);
    // For a call that stands for several: who waits for it waits for each.
    void stands_for(std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    {
        parts_ = std::move(parts);
    }

    // Of a message: who waits for it moves it, as long as somebody else owns the group too.
    void moved_by(const std::shared_ptr<solo_group> &group)
    {
        mover_ = group;
    }

    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
    float getDuration() const override;
    uint64_t getSequencenumber() const override;
    bool isCompleted() override; // the device too
    void synchronize() override; // the current stream waits, not the caller
    void blockCurrentStream() override;
    void abort() override;

    void set_source(int rank);
    c10d::OpType type() const
    {
        return opType_;
    }
    void on_complete(std::function<void(SoloWork &)> hook)
    {
        hook_ = std::move(hook);
    }
    std::chrono::steady_clock::time_point begun() const
    {
        return begun_;
    }

  private:
    std::mutex future_mutex_;
    bool ended_ = false;
    std::exception_ptr error_;
    c10::intrusive_ptr<c10::ivalue::Future> future_, result_future_;
    std::vector<at::Tensor> outputs_;
    std::vector<at::Device> devices_;
    std::shared_ptr<c10::Event> event_;
    std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
    std::weak_ptr<solo_group> mover_;
    const uint64_t sequence_;
    std::atomic<int> source_{-1};
    const std::chrono::steady_clock::time_point begun_;
    std::atomic<float> duration_ms_{-1};
    std::function<void(SoloWork &)> hook_;
};

} // namespace solo_c10d
