#include "c10d/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/errors.h"

namespace solo_c10d
{

SoloBackend::SoloBackend(const c10::intrusive_ptr<c10d::Store> &store, const OpenOptions &options)
    : Backend(options.rank, options.size), options_(options), name_(options.name), store_(store)
{
    if (!options.later) {
        group_ = open_group(store, options);
    }
    init();
}

solo_group *SoloBackend::group() const
{
    TORCH_CHECK(group_, "solo: this group is not formed yet: exchange the ranks' handles "
                        "(get_reconfigure_handle), then call reconfigure with all of them");
    return group_.get();
}

SoloBackend::~SoloBackend()
{
    if (device_side_ && !device_side_->drain(milliseconds(0))) {
        device_side_->abort("it was closed with work in flight");
    }
}

std::shared_ptr<DeviceSide> SoloBackend::device_side_now()
{
    std::lock_guard<std::mutex> guard(mutex_);
    return device_side_;
}

std::shared_ptr<DeviceSide> SoloBackend::device_side()
{
    std::lock_guard<std::mutex> guard(mutex_);
    if (!device_side_) {
        group();
        device_side_ = std::make_shared<DeviceSide>(store_, options_, group_);
    }
    return device_side_;
}

// ---- running ----------------------------------------------------------------------------------

namespace
{

// What an asynchronous call keeps alive until it is done.
struct Pending {
    c10::intrusive_ptr<SoloWork> work;
    Call call;
};

void finish(SoloWork &work, Call &call, int rc, const std::string &text)
{
    std::exception_ptr error;
    try {
        if (rc < 0) {
            error = error_of(rc, text);
        } else {
            call.write_back();
        }
    } catch (...) {
        error = std::current_exception();
    }
    work.complete(error);
}

// On the group's thread; nothing may be thrown into C.
void on_done(void *context, int rc, const char *text, uint32_t source)
{
    std::unique_ptr<Pending> pending(static_cast<Pending *>(context));
    try {
        pending->work->set_source(static_cast<int>(source));
        finish(*pending->work, pending->call, rc, text);
    } catch (const std::exception &error) {
        TORCH_WARN("solo: a callback on a finished call failed: ", error.what());
    }
}

} // namespace

c10::intrusive_ptr<SoloWork> SoloBackend::new_work(Kind kind, const std::optional<Tensors> &inputs,
                                                   Tensors outputs)
{
    auto work = c10::make_intrusive<SoloWork>(rank_, kind.type, kind.title, inputs,
                                              std::move(outputs), calls_.load());
    if (onCompletionHook_) {
        work->on_complete([hook = onCompletionHook_](SoloWork &done) {
            const auto now = std::chrono::steady_clock::now();
            hook(std::make_shared<c10d::WorkInfo>(done.type(), done.getSequencenumber(),
                                                  done.begun(), now, now - done.begun()));
        });
    }
    return work;
}

WorkPtr SoloBackend::enlist(c10::intrusive_ptr<SoloWork> work)
{
    std::lock_guard<std::mutex> guard(mutex_);
    if (coalescing_) {
        coalesced_.push_back(work);
    }
    return work;
}

WorkPtr SoloBackend::run(Call call, Kind kind, const std::optional<Tensors> &inputs,
                         Tensors outputs, milliseconds timeout, bool async)
{
    calls_++;
    auto work = new_work(kind, inputs, std::move(outputs));
    if (!call.device().is_cpu()) {
        device_side()->run(work, std::move(call), timeout);
        if (!async) {
            work->wait(); // until it is enqueued, and then the current stream
        }
        return enlist(work);
    }
    const auto count = static_cast<uint32_t>(call.ops().size());
    if (!async) {
        const int rc = solo_group_run(group(), call.ops().data(), count, timeout_ms(timeout));
        finish(*work, call, rc, rc < 0 ? solo_error_text() : "");
        if (work->exception()) {
            std::rethrow_exception(work->exception());
        }
        return enlist(work);
    }
    auto pending = std::make_unique<Pending>(Pending{work, std::move(call)});
    check(solo_group_post(group(), pending->call.ops().data(), count, timeout_ms(timeout), on_done,
                          pending.get()));
    pending.release(); // on_done's now
    return enlist(work);
}

// ---- messages ---------------------------------------------------------------------------------

WorkPtr SoloBackend::message(Tensors &tensors, Kind kind, int peer, int tag, bool receive)
{
    const auto &tensor = only(tensors, kind.title);
    auto work = new_work(kind, tensors, receive ? tensors : Tensors{});
    auto pending = std::make_unique<Pending>();
    pending->work = work;
    const auto part = receive ? pending->call.out(tensor) : pending->call.in(tensor);
    const uint64_t size = static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
    const auto rank = static_cast<uint32_t>(peer);
    const auto wire_tag = static_cast<uint64_t>(static_cast<int64_t>(tag));
    if (!tensor.device().is_cpu()) {
        device_side()->message(work, std::move(pending->call), {part.bytes, size},
                               {rank, wire_tag, receive});
        return enlist(work);
    }
    work->moved_by(group_);
    check(receive ? solo_group_receive(group(), rank, wire_tag, part.bytes, size, 0, on_done,
                                       pending.get())
                  : solo_group_send(group(), rank, wire_tag, part.bytes, size, 0, on_done,
                                    pending.get()));
    pending.release(); // on_done's now
    return enlist(work);
}

WorkPtr SoloBackend::send(Tensors &tensors, int to, int tag)
{
    return message(tensors, {c10d::OpType::SEND, "solo:send"}, to, tag, false);
}

WorkPtr SoloBackend::recv(Tensors &tensors, int from, int tag)
{
    return message(tensors, {c10d::OpType::RECV, "solo:recv"}, from, tag, true);
}

WorkPtr SoloBackend::recvAnysource(Tensors &tensors, int tag)
{
    return message(tensors, {c10d::OpType::RECVANYSOURCE, "solo:recvAnySource"},
                   static_cast<int>(SOLO_ANY_SOURCE), tag, true);
}

// ---- coalescing -------------------------------------------------------------------------------

void SoloBackend::startCoalescing()
{
    std::lock_guard<std::mutex> guard(mutex_);
    TORCH_CHECK(!coalescing_, "solo: coalescing was begun twice");
    coalescing_ = true;
}

WorkPtr SoloBackend::endCoalescing()
{
    std::vector<WorkPtr> works;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        TORCH_CHECK(coalescing_, "solo: coalescing was not begun");
        coalescing_ = false;
        works.swap(coalesced_);
    }
    auto all = new_work({c10d::OpType::COALESCED, "solo:coalesced"}, std::nullopt, {});
    all->stands_for(works);
    // The last of them completes the whole, with the first error there was.
    struct Rest {
        std::mutex mutex;
        size_t count;
        std::exception_ptr error;
    };
    auto rest = std::make_shared<Rest>();
    rest->count = works.size() + 1;
    auto one_less = [all, rest](const std::exception_ptr &error) {
        std::unique_lock<std::mutex> guard(rest->mutex);
        rest->error = rest->error ? rest->error : error;
        if (--rest->count == 0) {
            guard.unlock();
            all->complete(rest->error);
        }
    };
    for (const auto &work : works) {
        work->getFuture()->addCallback([one_less](c10::ivalue::Future &future) {
            one_less(future.hasError() ? future.exception_ptr() : nullptr);
        });
    }
    one_less(nullptr);
    return all;
}

// ---- life -------------------------------------------------------------------------------------

c10::intrusive_ptr<c10d::Backend::Options> SoloBackend::getBackendOptions()
{
    auto options = c10::make_intrusive<Options>("solo", options_.timeout);
    options->group_name = options_.name;
    return options;
}

void SoloBackend::setTimeout(milliseconds timeout)
{
    options_.timeout = timeout;
    if (auto side = device_side_now()) {
        side->set_timeout(timeout);
    }
    if (group_) {
        solo_group_set_timeout(group_.get(), timeout_ms(timeout));
    }
}

uint64_t SoloBackend::getSequenceNumberForGroup()
{
    return calls_;
}

void SoloBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook)
{
    TORCH_CHECK(!onCompletionHook_, "solo: an on-completion hook is registered already");
    onCompletionHook_ = std::move(hook);
}

void SoloBackend::waitForPendingWorks()
{
    check(solo_group_shutdown(group(), 0));
    if (auto side = device_side_now()) {
        side->drain(options_.timeout);
    }
}

c10d::ErrorType SoloBackend::getError()
{
    int rc = solo_group_health(group());
    if (auto side = device_side_now(); side && rc == 0) {
        rc = side->health();
    }
    switch (rc) {
    case 0:
        return c10d::ErrorType::SUCCESS;
    case SOLO_ETIMEDOUT:
        return c10d::ErrorType::TIMEOUT;
    case SOLO_ECLOSED:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

void SoloBackend::abort()
{
    if (group_) {
        abort_hooks_.call();
        solo_group_abort(group_.get(), nullptr);
    }
    if (auto side = device_side_now()) {
        side->abort(nullptr);
    }
}

void SoloBackend::shutdown()
{
    if (!group_) {
        return; // never formed
    }
    if (auto side = device_side_now()) {
        side->drain(options_.timeout);
    }
    const int rc = solo_group_shutdown(group(), 0);
    if (rc == SOLO_EMISMATCH) { // nobody has heard of it, and nobody else will say it
        check(rc);
    } else if (rc < 0 && solo_group_health(group()) == 0) {
        TORCH_WARN("solo: ", solo_error_text());
    }
}

std::unordered_map<std::string, uint64_t> SoloBackend::getMemoryStats()
{
    solo_group_figures stats{};
    solo_group_stats(group(), &stats);
    const auto side = device_side_now();
    return {{"shared_bytes", stats.shared_bytes}, {"staging_bytes", stats.staging_bytes},
            {"local_ranks", stats.local_ranks},   {"hosts", stats.hosts},
            {"connections", stats.connections},   {"nccl_calls", side ? side->nccl_calls() : 0}};
}

} // namespace solo_c10d
