// nccl.h - NCCL, if this process has it: loaded at run time, the copy that torch has loaded first.
//
// Its types are declared here as far as they are used; they are part of its binary interface
// (a test compares them with nccl.h where that is installed).
//
// Threads: one.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <functional>
#include <vector>

#include "solo_group.h"

namespace solo_c10d
{

struct NcclId {
    char bytes[128];
};

// The first fields of ncclConfig_t; NCCL takes a shorter one of an older version.
struct NcclConfig {
    size_t size = sizeof(NcclConfig);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
};

struct NcclLibrary; // its functions

class Nccl
{
  public:
    // The library that SOLO_NCCL names ("0": none), else torch's, else the system's. NULL: none.
    static const NcclLibrary *library(at::DeviceType type);
    // What stands for one GPU on this host.
    static uint64_t gpu_of(at::Device device);

    static NcclId new_id(const NcclLibrary *library);

    // Meets the other ranks, at most until the deadline.
    Nccl(const NcclLibrary *library, const NcclId &id, int rank, int world, at::Device device,
         std::chrono::steady_clock::time_point deadline);
    ~Nccl();
    Nccl(const Nccl &) = delete;
    Nccl &operator=(const Nccl &) = delete;

    // Whether NCCL has this operation on this dtype; no rank decides otherwise.
    static bool has(const solo_op &op);
    // Whether the parts of each lie one behind the other, equally long.
    static bool adjoin(const std::vector<solo_op> &ops);
    // Enqueues operations on a stream. `adjoin`: it is so on every rank.
    void enqueue(const std::vector<solo_op> &ops, bool adjoin, c10::Stream stream,
                 std::chrono::steady_clock::time_point deadline);
    // Empty, or what went wrong.
    std::string fault() const;
    // Ends what is under way on the device; nothing else may be asked afterwards.
    void abort();

    at::Device device() const
    {
        return device_;
    }

  private:
    void enqueue_one(const solo_op &op, bool adjoin, void *stream);
    void enqueue_gathered(const solo_op &op, void *stream);
    void enqueue_exchange(const solo_op &op, void *stream);
    int reduction(const solo_op &op);
    void check(int result, const char *what) const;
    void settle(std::chrono::steady_clock::time_point deadline, const char *what) const;

    const NcclLibrary *const library_;
    const int rank_, world_;
    const at::Device device_;
    void *comm_ = nullptr;
    std::vector<int> reductions_; // made for one call
};

} // namespace solo_c10d
