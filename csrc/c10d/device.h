// device.h - the collectives and messages of a group for tensors of an accelerator.
//
// A call is taken by the caller's thread (an event on its current stream says when the tensors
// are ready) and done by a thread of the group. First all ranks compare, on the CPU, what they
// are about to do; then NCCL does it if every rank can (nccl.h), else it goes through pinned
// memory in pieces (staged.h). A call is complete when its last copy or kernel is enqueued on a
// stream of ours; who wants the results makes a stream wait for that. The device as a whole is
// never waited for.
//
// It rests on torch's own interface to streams and events, so no CUDA header is needed, and any
// accelerator that torch knows will do.
#pragma once

#include <map>

#include "c10d/call.h"
#include "c10d/intent.h"
#include "c10d/lane.h"
#include "c10d/nccl.h"
#include "c10d/open.h"
#include "c10d/staged.h"
#include "c10d/work.h"

namespace solo_c10d
{

class DeviceSide : public std::enable_shared_from_this<DeviceSide>
{
  public:
    // `main`: the group of the CPU tensors, which carries messages too; collectives have a group
    // of their own, opened by the first, so that both kinds keep their own order.
    DeviceSide(c10::intrusive_ptr<c10d::Store> store, OpenOptions options, GroupPtr main);
    ~DeviceSide();

    void run(c10::intrusive_ptr<SoloWork> work, Call call, milliseconds timeout);
    struct Peer {
        uint32_t rank;
        uint64_t tag;
        bool receive;
    };
    // `part`: the bytes of the one tensor of `call`.
    void message(c10::intrusive_ptr<SoloWork> work, Call call, solo_part part, Peer peer);

    // Until all that was begun is enqueued: whether it is.
    bool drain(milliseconds timeout);
    void abort(const char *why);
    int health(); // as solo_group_health
    void set_timeout(milliseconds timeout);
    uint64_t nccl_calls() const
    {
        return nccl_calls_;
    }

  private:
    struct Job { // one collective
        c10::intrusive_ptr<SoloWork> work;
        Call call;
        c10::Event ready; // the tensors are, for a stream
        Deadline deadline;
    };
    struct Letter;  // one message
    struct Flight { // what NCCL was given and has not done
        std::shared_ptr<c10::Event> done;
        Deadline deadline;
    };

    void open();
    void begin(Job &job);
    void go(Job &job);
    void go_nccl(Job &job, const Verdict &verdict, Streams &streams);
    void check_shares(const solo_op &op, Deadline deadline);
    void meet_nccl(Job &job);
    bool watch();
    void dispatch(const std::shared_ptr<Letter> &letter);
    void copy_from_device(Letter &letter);
    void deliver(Letter &letter);
    void break_own(const std::string &why);
    std::shared_ptr<c10::Event> conclude(SoloWork &work, Call &call, const Streams &streams);
    Streams &streams_on(at::Device device, std::map<int, Streams> &all);
    void on_own(const solo_op &op, Deadline deadline);

    const c10::intrusive_ptr<c10d::Store> store_;
    std::mutex mutex_; // guards options_, own_ and aborted_
    OpenOptions options_;
    const GroupPtr main_;
    GroupPtr own_;
    std::string aborted_;
    std::atomic<uint64_t> nccl_calls_{0};

    // of the lane for collectives
    std::map<int, Streams> streams_;
    Staging staging_;
    std::unique_ptr<Nccl> nccl_;
    std::deque<Flight> flights_;
    struct Gone { // the first rank that went, as it is told on a thread of libsolo
        std::mutex mutex;
        std::string text;
    };
    std::shared_ptr<Gone> gone_ = std::make_shared<Gone>();
    std::optional<Deadline> grace_; // for what is under way when a peer goes
    Lane collectives_;

    // of the lane for messages
    std::map<int, Streams> letter_streams_;
    struct Delivered {
        at::Tensor memory; // is read until `done`
        std::shared_ptr<c10::Event> done;
    };
    std::deque<Delivered> delivered_;
    Lane messages_;
};

} // namespace solo_c10d
