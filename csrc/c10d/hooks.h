// hooks.h - what a user wants called before a group is given up, once.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include <c10/util/Exception.h>

namespace solo_c10d
{

class AbortHooks
{
  public:
    using Hook = std::function<void()>;

    void add(int64_t id, Hook hook)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        TORCH_CHECK(hooks_.emplace(id, std::move(hook)).second, "solo: there is an abort hook ", id,
                    " already");
    }
    void remove(int64_t id)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        TORCH_CHECK(hooks_.erase(id) == 1, "solo: there is no abort hook ", id);
    }
    void call()
    {
        std::map<int64_t, Hook> hooks;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            if (called_) {
                return;
            }
            called_ = true;
            hooks = hooks_;
        }
        for (const auto &[id, hook] : hooks) {
            try {
                hook();
            } catch (const std::exception &error) {
                TORCH_WARN("solo: abort hook ", id, " failed: ", error.what());
            }
        }
    }

  private:
    std::mutex mutex_;
    std::map<int64_t, Hook> hooks_;
    bool called_ = false;
};

} // namespace solo_c10d
