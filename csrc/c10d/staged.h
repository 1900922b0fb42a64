// staged.h - a collective on tensors of an accelerator through pinned memory.
//
// It is cut in pieces. While one is on its way between ranks, the next is copied from the device
// and the one before to it, each on a stream of its own. How a call is cut follows from what all
// ranks know alike.
//
// Threads: one.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <functional>
#include <optional>

#include "c10d/call.h"

namespace solo_c10d
{

constexpr uint64_t kStageBytes = 4 << 20; // of one slot
constexpr size_t kStages = 3;             // one copied in, one on the wire, one copied out

using Deadline = std::chrono::steady_clock::time_point;

// Waits for an event of the device, and for nothing else of it; throws after the deadline.
void await(const c10::Event &event, Deadline deadline);
uint32_t left_ms(Deadline deadline); // at least a millisecond

// Two streams of ours on one device.
struct Streams {
    explicit Streams(at::Device device);

    c10::impl::VirtualGuardImpl impl;
    c10::Stream down, up; // from the device, to the device
};

// Elements that a piece takes of each part: the same on every rank.
uint64_t piece_elements(const solo_op &op, int world);

class Staging
{
  public:
    // Moves one piece between ranks; throws.
    using Wire = std::function<void(const solo_op &)>;

    // What runs on the group, given in `most`: for each operation the longest of its parts on any
    // rank. On return all copies to the device are enqueued on streams.up.
    void run(const std::vector<solo_op> &ops, const std::vector<uint64_t> &most, int rank,
             int world, Streams &streams, Deadline deadline, const Wire &wire);

  private:
    struct Slot {
        at::Tensor memory;
        std::optional<c10::Event> in, out; // copied from the device; copied to it
    };
    struct Piece {
        const solo_op *op;
        uint64_t at, count; // elements of each part that is long enough
    };
    // A piece's parts in a slot, beside those on the device.
    struct Layout {
        solo_op op{};
        std::vector<solo_part> in, out;              // in the slot
        std::vector<std::pair<solo_part, solo_part>> // device, slot: bytes
            reads, writes;
    };
    Layout lay_out(const Piece &piece, const Slot &slot, int rank) const;
    Slot &slot(size_t piece, const std::vector<solo_op> &ops, at::Device device);
    void copy_in(const Layout &layout, Slot &slot, Streams &streams);
    void copy_out(const Layout &layout, Slot &slot, Streams &streams);

    Slot slots_[kStages];
};

// Pinned memory if this device has such, else what there is.
at::Tensor host_memory(int64_t size);
// Bytes at an address of a device, as a tensor that owns nothing.
at::Tensor bytes_at(void *address, uint64_t size, at::Device device);

} // namespace solo_c10d
