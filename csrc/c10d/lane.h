// lane.h - a thread that does jobs one after another, in the order given.
//
// It is started by the first job and never joined: whoever destroys a lane may hold the
// interpreter's lock, which a job may be waiting for. A forked child has no such thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace solo_c10d
{

class Lane
{
  public:
    using Job = std::function<void()>; // throws nothing

    Lane();
    ~Lane(); // what was posted is still done
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;

    void post(Job job);
    // While it has nothing to do: asked every millisecond, until it answers false.
    void when_idle(std::function<bool()> look);
    // Until all that was posted before is done, at most that long: whether it is.
    bool drain(std::chrono::milliseconds timeout);

  private:
    struct State {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<Job> jobs;
        std::function<bool()> look;
        bool started = false, closing = false;
        int process = 0;
    };
    static void work(const std::shared_ptr<State> &state);

    std::shared_ptr<State> state_;
};

} // namespace solo_c10d
