#include "c10d/lane.h"

#include <unistd.h>

#include <c10/util/Exception.h>

#include <future>

namespace solo_c10d
{

Lane::Lane() : state_(std::make_shared<State>())
{
    state_->process = getpid();
}

Lane::~Lane()
{
    if (state_->process != getpid()) {
        return; // whoever held the mutex when this child was forked never gives it back
    }
    std::lock_guard<std::mutex> guard(state_->mutex);
    state_->closing = true;
    state_->changed.notify_all();
}

void Lane::post(Job job)
{
    TORCH_CHECK(state_->process == getpid(),
                "solo: this group was opened before this process was forked: a child must open "
                "its own (or be started by spawn)");
    std::lock_guard<std::mutex> guard(state_->mutex);
    if (!state_->started) {
        std::thread([state = state_] { work(state); }).detach();
        state_->started = true;
    }
    state_->jobs.push_back(std::move(job));
    state_->changed.notify_all();
}

bool Lane::drain(std::chrono::milliseconds timeout)
{
    {
        std::lock_guard<std::mutex> guard(state_->mutex);
        if (!state_->started) {
            return true;
        }
    }
    auto reached = std::make_shared<std::promise<void>>();
    auto waiting = reached->get_future();
    post([reached] { reached->set_value(); });
    return waiting.wait_for(timeout) == std::future_status::ready;
}

void Lane::when_idle(std::function<bool()> look)
{
    std::lock_guard<std::mutex> guard(state_->mutex);
    state_->look = std::move(look);
    state_->changed.notify_all();
}

void Lane::work(const std::shared_ptr<State> &state)
{
    std::unique_lock<std::mutex> lock(state->mutex);
    const auto awake = [&] { return !state->jobs.empty() || state->closing; };
    while (true) {
        if (!state->look) {
            state->changed.wait(lock, [&] { return awake() || state->look; });
        } else if (!state->changed.wait_for(lock, std::chrono::milliseconds(1), awake)) {
            auto look = state->look;
            lock.unlock();
            const bool again = look();
            lock.lock();
            if (!again) {
                state->look = nullptr;
            }
            lock.unlock();
            look = nullptr; // it may hold the lane's owner, whose end takes the lock
            lock.lock();
            continue;
        }
        if (!state->jobs.empty()) {
            Job job = std::move(state->jobs.front());
            state->jobs.pop_front();
            lock.unlock();
            job();
            job = nullptr; // what it held is given up without the lock
            lock.lock();
        } else if (state->closing) {
            return;
        }
    }
}

} // namespace solo_c10d
