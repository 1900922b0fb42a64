#include "c10d/staged.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <thread>

#include "c10d/errors.h"

namespace solo_c10d
{

// ---- waiting ----------------------------------------------------------------------------------

uint32_t left_ms(Deadline deadline)
{
    using std::chrono::milliseconds;
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    return static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, UINT32_MAX));
}

void await(const c10::Event &event, Deadline deadline)
{
    for (int looks = 0; !event.query(); looks++) {
        if (std::chrono::steady_clock::now() > deadline) {
            throw_error(SOLO_ETIMEDOUT, "the device did not finish what was enqueued before this "
                                        "call, or the copy of its tensors, in time");
        }
        if (looks < 100) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
}

Streams::Streams(at::Device device)
    : impl(device.type()), down(impl.getStreamFromGlobalPool(device)),
      up(impl.getStreamFromGlobalPool(device))
{
}

// ---- memory -----------------------------------------------------------------------------------

at::Tensor host_memory(int64_t size)
{
    static std::atomic<bool> pinned{true};
    if (pinned) {
        try {
            return at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(true));
        } catch (const std::exception &) {
            pinned = false; // copies are then slower, and as right
        }
    }
    return at::empty({size}, at::kByte);
}

at::Tensor bytes_at(void *address, uint64_t size, at::Device device)
{
    return at::for_blob(address, {static_cast<int64_t>(size)})
        .options(at::TensorOptions(at::kByte).device(device))
        .target_device(device)
        .make_tensor();
}

// ---- cutting ----------------------------------------------------------------------------------

namespace
{

bool has_part_for_each(solo_op_kind kind)
{
    return kind == SOLO_OP_ALLGATHER || kind == SOLO_OP_GATHER || kind == SOLO_OP_SCATTER ||
           kind == SOLO_OP_REDUCE_SCATTER || kind == SOLO_OP_ALLTOALL;
}

uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) & ~uint64_t(63);
}

} // namespace

uint64_t piece_elements(const solo_op &op, int world)
{
    const uint64_t parts = op.kind == SOLO_OP_ALLTOALL  ? 2 * world
                           : has_part_for_each(op.kind) ? world + 1
                                                        : 1;
    const uint64_t elements = kStageBytes / parts / solo_dtype_bytes(op.dtype);
    return std::max<uint64_t>(elements & ~uint64_t(63), 64);
}

Staging::Layout Staging::lay_out(const Piece &piece, const Slot &slot, int rank) const
{
    Layout layout;
    layout.op = *piece.op;
    const uint64_t element = solo_dtype_bytes(piece.op->dtype);
    uint64_t used = 0;
    auto cut = [&](const solo_part &part) {
        const uint64_t count =
            piece.at < part.count ? std::min(piece.count, part.count - piece.at) : 0;
        auto *at = static_cast<uint8_t *>(part.bytes);
        return solo_part{count ? at + piece.at * element : nullptr, count * element};
    };
    auto place = [&](const solo_part &device) {
        auto *at = static_cast<uint8_t *>(slot.memory.data_ptr()) + used;
        used += aligned(device.count);
        TORCH_INTERNAL_ASSERT(used <= static_cast<uint64_t>(slot.memory.numel()));
        return solo_part{device.count ? at : nullptr, device.count / element};
    };
    for (uint32_t i = 0; i < piece.op->in_count; i++) {
        const auto device = cut(piece.op->in[i]);
        layout.in.push_back(place(device));
        layout.reads.emplace_back(device, layout.in.back());
    }
    const bool sends_out =
        piece.op->kind == SOLO_OP_BROADCAST && piece.op->root == static_cast<uint32_t>(rank);
    for (uint32_t i = 0; i < piece.op->out_count; i++) {
        const auto device = cut(piece.op->out[i]);
        const bool in_place = piece.op->in_count == 1 && piece.op->out_count == 1 &&
                              piece.op->in[0].bytes == piece.op->out[0].bytes;
        layout.out.push_back(in_place ? layout.in[0] : place(device));
        (sends_out ? layout.reads : layout.writes).emplace_back(device, layout.out.back());
    }
    return layout;
}

// ---- moving -----------------------------------------------------------------------------------

Staging::Slot &Staging::slot(size_t piece, const std::vector<solo_op> &ops, at::Device device)
{
    uint64_t bytes = 0;
    for (const auto &op : ops) {
        const uint64_t parts = op.in_count + op.out_count;
        bytes = std::max(bytes, kStageBytes + 64 * parts);
        bytes = std::max(bytes, parts * 64 * solo_dtype_bytes(op.dtype)); // the least piece
    }
    Slot &slot = slots_[piece % kStages];
    if (!slot.memory.defined() || slot.memory.numel() < static_cast<int64_t>(bytes)) {
        if (slot.out && slot.out->was_marked_for_recording()) {
            slot.out->synchronize(); // what lies in the old memory is on the device
        }
        slot.memory = host_memory(static_cast<int64_t>(bytes));
    }
    if (!slot.in || slot.in->device_type() != device.type()) {
        slot.in.emplace(device.type());
        slot.out.emplace(device.type());
    }
    return slot;
}

namespace
{

// A view of the slot's own memory, so that torch sees which memory it is.
at::Tensor in_slot(const at::Tensor &memory, const solo_part &part, uint64_t bytes)
{
    const auto *base = static_cast<const uint8_t *>(memory.data_ptr());
    return memory.narrow(0, static_cast<uint8_t *>(part.bytes) - base, static_cast<int64_t>(bytes));
}

} // namespace

void Staging::copy_in(const Layout &layout, Slot &slot, Streams &streams)
{
    const c10::StreamGuard guard(streams.down);
    if (slot.out->was_marked_for_recording()) {
        slot.out->block(streams.down); // what lay here is on the device
    }
    for (const auto &[device, host] : layout.reads) {
        if (device.count) {
            in_slot(slot.memory, host, device.count)
                .copy_(bytes_at(device.bytes, device.count, streams.down.device()), true);
        }
    }
    slot.in->record(streams.down);
}

void Staging::copy_out(const Layout &layout, Slot &slot, Streams &streams)
{
    const c10::StreamGuard guard(streams.up);
    for (const auto &[device, host] : layout.writes) {
        if (device.count) {
            bytes_at(device.bytes, device.count, streams.up.device())
                .copy_(in_slot(slot.memory, host, device.count), true);
        }
    }
    slot.out->record(streams.up);
}

void Staging::run(const std::vector<solo_op> &ops, const std::vector<uint64_t> &most, int rank,
                  int world, Streams &streams, Deadline deadline, const Wire &wire)
{
    std::vector<Piece> pieces;
    for (size_t i = 0; i < ops.size(); i++) {
        const uint64_t each = piece_elements(ops[i], world);
        uint64_t at = 0;
        do {
            pieces.push_back({&ops[i], at, each});
            at += each;
        } while (at < most[i]);
    }
    std::vector<Layout> layouts(kStages);
    auto prepare = [&](size_t piece) {
        Slot &into = slot(piece, ops, streams.down.device());
        layouts[piece % kStages] = lay_out(pieces[piece], into, rank);
        copy_in(layouts[piece % kStages], into, streams);
    };
    prepare(0);
    for (size_t piece = 0; piece < pieces.size(); piece++) {
        if (piece + 1 < pieces.size()) {
            prepare(piece + 1);
        }
        Slot &now = slots_[piece % kStages];
        Layout &layout = layouts[piece % kStages];
        await(*now.in, deadline);
        layout.op.in = layout.in.data();
        layout.op.out = layout.out.data();
        wire(layout.op);
        copy_out(layout, now, streams);
    }
}

} // namespace solo_c10d
