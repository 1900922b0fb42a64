// letters.cpp - messages between two ranks for tensors of an accelerator: through pinned memory,
// carried by the group's messages for CPU tensors, so either side may be on either device.
#include <c10/core/StreamGuard.h>

#include "c10d/device.h"
#include "c10d/errors.h"

namespace solo_c10d
{

struct DeviceSide::Letter {
    std::shared_ptr<DeviceSide> side;
    c10::intrusive_ptr<SoloWork> work;
    Call call;
    solo_part part;
    Peer peer;
    c10::Event ready;
    Deadline deadline;
    at::Tensor memory;
    int rc = 0;
    std::string text;
};

void DeviceSide::message(c10::intrusive_ptr<SoloWork> work, Call call, solo_part part, Peer peer)
{
    const auto where = call.device();
    work->on_device(where);
    const c10::impl::VirtualGuardImpl impl(where.type());
    c10::Event ready(where.type());
    ready.record(impl.getStream(where));
    milliseconds timeout;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        timeout = options_.timeout;
    }
    auto letter = std::make_shared<Letter>(
        Letter{shared_from_this(), std::move(work), std::move(call), part, peer, std::move(ready),
               std::chrono::steady_clock::now() + timeout, at::Tensor(), 0, ""});
    messages_.post([letter] {
        try {
            letter->side->dispatch(letter);
        } catch (...) {
            letter->work->complete(std::current_exception());
        }
    });
}

void DeviceSide::copy_from_device(Letter &letter)
{
    auto &streams = streams_on(letter.call.device(), letter_streams_);
    letter.ready.block(streams.down);
    if (letter.part.count) {
        const c10::StreamGuard guard(streams.down);
        letter.memory.copy_(bytes_at(letter.part.bytes, letter.part.count, streams.down.device()),
                            true);
    }
    c10::Event copied(streams.down.device_type());
    copied.record(streams.down);
    await(copied, letter.deadline);
}

void DeviceSide::dispatch(const std::shared_ptr<Letter> &letter)
{
    letter->memory = host_memory(static_cast<int64_t>(letter->part.count));
    if (!letter->peer.receive) {
        copy_from_device(*letter);
    }
    const auto done = [](void *context, int rc, const char *text, uint32_t source) {
        // On a thread of libsolo; nothing may be thrown into C.
        std::unique_ptr<std::shared_ptr<Letter>> held(
            static_cast<std::shared_ptr<Letter> *>(context));
        auto ended = *held;
        ended->rc = rc;
        ended->text = rc < 0 ? text : "";
        ended->work->set_source(static_cast<int>(source));
        ended->side->messages_.post([ended] {
            try {
                ended->side->deliver(*ended);
            } catch (...) {
                ended->work->complete(std::current_exception());
            }
        });
    };
    auto held = std::make_unique<std::shared_ptr<Letter>>(letter);
    const auto &peer = letter->peer;
    void *bytes = letter->memory.data_ptr();
    const uint32_t left = left_ms(letter->deadline);
    check(peer.receive ? solo_group_receive(main_.get(), peer.rank, peer.tag, bytes,
                                            letter->part.count, left, done, held.get())
                       : solo_group_send(main_.get(), peer.rank, peer.tag, bytes,
                                         letter->part.count, left, done, held.get()));
    held.release(); // the callback's now
}

void DeviceSide::deliver(Letter &letter)
{
    if (letter.rc < 0 || !letter.peer.receive) {
        letter.work->complete(letter.rc < 0 ? error_of(letter.rc, letter.text) : nullptr);
        return;
    }
    auto &streams = streams_on(letter.call.device(), letter_streams_);
    letter.ready.block(streams.up);
    if (letter.part.count) {
        const c10::StreamGuard guard(streams.up);
        bytes_at(letter.part.bytes, letter.part.count, streams.up.device())
            .copy_(letter.memory, true);
    }
    delivered_.push_back({letter.memory, conclude(*letter.work, letter.call, streams)});
    while (!delivered_.empty() && delivered_.front().done->query()) {
        delivered_.pop_front();
    }
}

} // namespace solo_c10d
