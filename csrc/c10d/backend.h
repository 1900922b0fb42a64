// backend.h - "solo" as torch sees it: each virtual of c10d::Backend is one call of solo_group.h.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "c10d/call.h"
#include "c10d/work.h"

namespace solo_c10d
{

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<Work>;
using std::chrono::milliseconds;

struct OpenOptions {
    int rank = 0, size = 1;
    milliseconds timeout = kBackendDefaultTimeout;
    std::string name;
    uint64_t generation = 0; // set by the constructor
    std::string store_host;  // whose route is our address; "" if the store has none
};

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
    void setTimeout(milliseconds) override;
    void setSequenceNumberForGroup() override
    {
    }
    uint64_t getSequenceNumberForGroup() override;
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &,
                                      const std::vector<int> &ranks,
                                      const c10::intrusive_ptr<Options> &) override;
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
    WorkPtr message(Tensors &tensors, Kind kind, int peer, int tag, bool receive);
    c10::intrusive_ptr<SoloWork> new_work(Kind kind, const std::optional<Tensors> &inputs,
                                          Tensors outputs);
    WorkPtr enlist(c10::intrusive_ptr<SoloWork> work);

    solo_group *group_ = nullptr;
    OpenOptions options_;
    std::atomic<uint64_t> calls_{0}; // collectives asked for: the same on every rank
    std::mutex mutex_;
    bool coalescing_ = false;
    std::vector<WorkPtr> coalesced_;
};

const at::Tensor &only(const Tensors &tensors, const char *name); // throws unless it is one
uint32_t timeout_ms(milliseconds timeout); // 0, the group's, for what torch leaves unset

// The store's word for every rank, in rank order; throws naming those that did not come.
std::vector<std::string> exchange_cards(const c10::intrusive_ptr<c10d::Store> &store,
                                        const OpenOptions &options, const std::string &own);

} // namespace solo_c10d
