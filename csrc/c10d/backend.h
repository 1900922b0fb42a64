// backend.h - "solo" as torch sees it: each virtual of c10d::Backend is one call of solo_group.h.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/headeronly/version.h>

#include <set>

#include "c10d/device.h"
#include "c10d/hooks.h"

namespace solo_c10d
{

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<Work>;

class SoloBackend : public c10d::Backend
{
  public:
    // Meets the other ranks through the store; throws if some do not come.
    SoloBackend(const c10::intrusive_ptr<c10d::Store> &store, const OpenOptions &options);
    ~SoloBackend() override;

    // Collectives.
    WorkPtr broadcast(Tensors &, const c10d::BroadcastOptions &) override;
    WorkPtr allreduce(Tensors &, const c10d::AllreduceOptions &) override;
    WorkPtr allreduce_sparse(Tensors &, const c10d::AllreduceOptions &) override;
    WorkPtr allreduce_coalesced(Tensors &, const c10d::AllreduceCoalescedOptions &) override;
    WorkPtr reduce(Tensors &, const c10d::ReduceOptions &) override;
    WorkPtr allgather(TensorLists &, Tensors &, const c10d::AllgatherOptions &) override;
    WorkPtr _allgather_base(at::Tensor &, at::Tensor &, const c10d::AllgatherOptions &) override;
    WorkPtr allgather_coalesced(TensorLists &, Tensors &, const c10d::AllgatherOptions &) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &, Tensors &,
                                            const c10d::AllgatherOptions &) override;
    WorkPtr gather(TensorLists &, Tensors &, const c10d::GatherOptions &) override;
#if TORCH_VERSION_MINOR >= 14
    WorkPtr gather_single(at::Tensor &, at::Tensor &, const c10d::GatherOptions &) override;
#endif
    WorkPtr scatter(Tensors &, TensorLists &, const c10d::ScatterOptions &) override;
    WorkPtr reduce_scatter(Tensors &, TensorLists &, const c10d::ReduceScatterOptions &) override;
    WorkPtr _reduce_scatter_base(at::Tensor &, at::Tensor &,
                                 const c10d::ReduceScatterOptions &) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &, Tensors &,
                                            const c10d::ReduceScatterOptions &) override;
    WorkPtr alltoall_base(at::Tensor &, at::Tensor &, std::vector<int64_t> &,
                          std::vector<int64_t> &, const c10d::AllToAllOptions &) override;
    WorkPtr alltoall(Tensors &, Tensors &, const c10d::AllToAllOptions &) override;
    WorkPtr barrier(const c10d::BarrierOptions &) override;
    void monitoredBarrier(const c10d::BarrierOptions &, bool wait_all_ranks) override;

    // Messages.
    WorkPtr send(Tensors &, int to, int tag) override;
    WorkPtr recv(Tensors &, int from, int tag) override;
    WorkPtr recvAnysource(Tensors &, int tag) override;

    // Several calls as one.
    void startCoalescing() override;
    WorkPtr endCoalescing() override;

    // Life, groups, health.
    const std::string getBackendName() const override
    {
        return "solo";
    }
    c10::intrusive_ptr<Options> getBackendOptions() override;
    bool supportsSplitting() const override
    {
        return true;
    }
    bool supportsShrinking() const override
    {
        return true;
    }
    void setTimeout(milliseconds) override;
    void setSequenceNumberForGroup() override
    {
    }
    uint64_t getSequenceNumberForGroup() override;
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &,
                                      const std::vector<int> &ranks,
                                      const c10::intrusive_ptr<Options> &) override;
    c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store> &,
                                      const c10::intrusive_ptr<Options> &, const int &rank,
                                      const int &size) override;
    // Without the excluded ranks, which take no part and may be dead. Flag 1: what is under way
    // is given up first.
    c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t> &exclude, int flags,
                                       const c10::intrusive_ptr<Options> &) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    bool supportsReconfigure() const override
    {
        return true;
    }
    c10d::ReconfigureHandle get_reconfigure_handle() const override;
    WorkPtr reconfigure(const c10d::ReconfigureOptions &) override;
#endif
#ifdef C10D_BACKEND_HAS_HOOKS
    void registerAbortHook(int64_t id, c10d::AbortHook hook) override
    {
        abort_hooks_.add(id, std::move(hook));
    }
    void unregisterAbortHook(int64_t id) override
    {
        abort_hooks_.remove(id);
    }
#endif
    void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&) override;
    void waitForPendingWorks() override;
    void enableCollectivesTiming() override
    {
    } // always on
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;
    std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  private:
    struct Kind { // what a call is called
        c10d::OpType type;
        const char *title;
    };
    WorkPtr run(Call call, Kind kind, const std::optional<Tensors> &inputs, Tensors outputs,
                milliseconds timeout, bool async);
    template <typename Opts, typename Add>
    WorkPtr run_pairs(const Tensors &outputs, const Tensors &inputs, Kind kind, const Opts &opts,
                      Add add);
    WorkPtr gather_pairs(const Tensors &outputs, const Tensors &inputs, c10d::OpType type,
                         const c10d::AllgatherOptions &opts);
    WorkPtr scatter_pairs(const Tensors &outputs, const Tensors &inputs, c10d::OpType type,
                          const c10d::ReduceScatterOptions &opts);
    WorkPtr message(Tensors &tensors, Kind kind, int peer, int tag, bool receive);
    c10::intrusive_ptr<SoloWork> new_work(Kind kind, const std::optional<Tensors> &inputs,
                                          Tensors outputs);
    solo_group *group() const; // throws while it is not formed
    c10::intrusive_ptr<Backend> sibling(const c10::intrusive_ptr<c10d::Store> &store,
                                        const std::string &way, OpenOptions options,
                                        const c10::intrusive_ptr<Options> &opts);
    WorkPtr enlist(c10::intrusive_ptr<SoloWork> work);
    std::shared_ptr<DeviceSide> device_side();     // made when first used
    std::shared_ptr<DeviceSide> device_side_now(); // NULL: not used yet

    OpenOptions options_;
    const std::string name_;
    const c10::intrusive_ptr<c10d::Store> store_;
    GroupPtr group_;                           // NULL: formed by reconfigure
    mutable std::unique_ptr<Meeting> meeting_; // whose card was given as a handle
    std::set<int64_t> uuids_;                  // of reconfigure
    AbortHooks abort_hooks_;
    std::atomic<uint64_t> calls_{0}; // collectives asked for: the same on every rank
    std::mutex mutex_;               // guards what follows
    std::shared_ptr<DeviceSide> device_side_;
    bool coalescing_ = false;
    std::vector<WorkPtr> coalesced_;
};

const at::Tensor &only(const Tensors &tensors, const char *name); // throws unless it is one
} // namespace solo_c10d
