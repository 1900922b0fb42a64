#include "c10d/work.h"

#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>

#include "c10d/errors.h"

namespace solo_c10d
{

std::exception_ptr error_of(int rc, const std::string &text)
{
    const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    const std::string what = "solo: " + text;
    switch (rc) {
    case SOLO_ENOTSUP:
        return std::make_exception_ptr(c10::NotImplementedError(here, what));
    case SOLO_EINVAL:
        return std::make_exception_ptr(c10::Error(here, what));
    case SOLO_ETIMEDOUT:
        return std::make_exception_ptr(c10d::TimeoutError(here, what));
    case SOLO_ECLOSED:
    case SOLO_EPEER:
    case SOLO_EAUTH:
        return std::make_exception_ptr(c10::DistNetworkError(here, what));
    default:
        return std::make_exception_ptr(c10::DistBackendError(here, what));
    }
}

void throw_error(int rc, const std::string &text)
{
    std::rethrow_exception(error_of(rc, text));
}

void check(int rc)
{
    if (rc < 0) {
        throw_error(rc, solo_error_text());
    }
}

namespace
{

using c10::ivalue::Future;

c10::IValue value_of(const std::vector<at::Tensor> &tensors)
{
    return c10::IValue(tensors);
}

void settle(const c10::intrusive_ptr<Future> &future, const std::vector<at::Tensor> &outputs,
            const std::exception_ptr &error)
{
    if (error) {
        future->setError(error);
    } else {
        future->markCompleted(value_of(outputs));
    }
}

} // namespace

SoloWork::SoloWork(int rank, c10d::OpType type, const char *title,
                   const std::optional<std::vector<at::Tensor>> &inputs,
                   std::vector<at::Tensor> outputs, uint64_t sequence)
    : Work(rank, type, title, inputs), outputs_(std::move(outputs)), sequence_(sequence),
      begun_(std::chrono::steady_clock::now())
{
}

void SoloWork::complete(std::exception_ptr error)
{
    const std::chrono::duration<float, std::milli> took = std::chrono::steady_clock::now() - begun_;
    duration_ms_ = took.count();
    finish(error);
    c10::intrusive_ptr<Future> future, result;
    {
        std::lock_guard<std::mutex> guard(future_mutex_);
        ended_ = true;
        error_ = error;
        future = future_;
        result = result_future_;
    }
    // No lock is held: callbacks run here and may call anything.
    if (future) {
        settle(future, outputs_, error);
    }
    if (result) {
        result->markCompleted(c10::IValue(static_cast<uint8_t>(error ? c10d::WorkResult::COMM_ERROR
                                                                     : c10d::WorkResult::SUCCESS)));
    }
    if (hook_) {
        hook_(*this);
    }
}

// The future is made here, so that complete() settles it: only there the right stream is current.
void SoloWork::on_device(at::Device device)
{
    devices_ = {device};
    getFuture();
}

void SoloWork::ends_with(std::shared_ptr<c10::Event> event)
{
    std::lock_guard<std::mutex> guard(future_mutex_);
    event_ = std::move(event);
}

bool SoloWork::isCompleted()
{
    if (!Work::isCompleted()) {
        return false;
    }
    const auto done = [](const auto &part) { return part->isCompleted(); };
    if (!std::all_of(parts_.begin(), parts_.end(), done)) {
        return false;
    }
    std::lock_guard<std::mutex> guard(future_mutex_);
    return error_ || !event_ || event_->query();
}

void SoloWork::synchronize()
{
    for (const auto &part : parts_) {
        part->synchronize();
    }
    std::shared_ptr<c10::Event> event;
    {
        std::lock_guard<std::mutex> guard(future_mutex_);
        event = event_;
    }
    if (event) {
        const c10::impl::VirtualGuardImpl impl(event->device_type());
        event->block(impl.getStream(devices_.at(0)));
    }
}

// The work is begun by another thread, so its event may not be there yet: waits for that.
void SoloWork::blockCurrentStream()
{
    wait();
}

c10::intrusive_ptr<Future> SoloWork::getFuture()
{
    bool ended = false;
    {
        std::lock_guard<std::mutex> guard(future_mutex_);
        if (future_) {
            return future_;
        }
        future_ =
            c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices_);
        ended = ended_;
    }
    if (ended) {
        settle(future_, outputs_, error_);
    }
    return future_;
}

c10::intrusive_ptr<Future> SoloWork::getFutureResult()
{
    bool ended = false;
    {
        std::lock_guard<std::mutex> guard(future_mutex_);
        if (result_future_) {
            return result_future_;
        }
        result_future_ = c10::make_intrusive<Future>(c10::IntType::get());
        ended = ended_;
    }
    if (ended) {
        result_future_->markCompleted(c10::IValue(static_cast<uint8_t>(
            error_ ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS)));
    }
    return result_future_;
}

// A time of its own is left to the plain wait: the message goes on when it has passed.
bool SoloWork::wait(std::chrono::milliseconds timeout)
{
    struct Wait {
        SoloWork *work;
        std::shared_ptr<solo_group> group;
    } wait{this, mover_.lock()};
    if (wait.group && timeout == kNoTimeout) {
        const auto over = [](void *context) {
            const auto *wait = static_cast<Wait *>(context);
            return static_cast<int>(wait->work->isCompleted() || wait->group.use_count() == 1);
        };
        solo_group_help(wait.group.get(), over, &wait);
        wait.group.reset();
    }
    return Work::wait(timeout);
}

int SoloWork::sourceRank() const
{
    return source_ >= 0 ? source_.load() : Work::sourceRank();
}

void SoloWork::set_source(int rank)
{
    source_ = rank;
}

std::vector<at::Tensor> SoloWork::result()
{
    return outputs_;
}

float SoloWork::getDuration() const
{
    return duration_ms_;
}

uint64_t SoloWork::getSequencenumber() const
{
    return sequence_;
}

void SoloWork::abort()
{
    TORCH_CHECK(false, "solo: one call cannot be given up alone: abort the group, "
                       "dist.distributed_c10d._abort_process_group(group)");
}

} // namespace solo_c10d
