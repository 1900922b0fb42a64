// groups.cpp - groups made from groups: split, merge, shrink, reconfigure.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <set>

#include "c10d/backend.h"
#include "c10d/errors.h"

namespace solo_c10d
{

// A new group whose ranks meet under a name of their own in the store.
c10::intrusive_ptr<c10d::Backend> SoloBackend::sibling(const c10::intrusive_ptr<c10d::Store> &store,
                                                       const std::string &way, OpenOptions options,
                                                       const c10::intrusive_ptr<Options> &opts)
{
    if (opts) {
        options.timeout = opts->timeout;
        options.name = opts->group_name.empty() ? options.name : opts->group_name;
    }
    options.own_store = true;
    options.later = false;
    return c10::make_intrusive<SoloBackend>(
        c10::make_intrusive<c10d::PrefixStore>("solo/" + way + "/" + options.name, store), options);
}

c10::intrusive_ptr<c10d::Backend> SoloBackend::split(const c10::intrusive_ptr<c10d::Store> &store,
                                                     const std::vector<int> &ranks,
                                                     const c10::intrusive_ptr<Options> &opts)
{
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) {
        return nullptr;
    }
    OpenOptions options = options_;
    options.rank = static_cast<int>(mine - ranks.begin());
    options.size = static_cast<int>(ranks.size());
    std::string way = "split";
    for (int rank : ranks) {
        way += " " + std::to_string(rank);
    }
    return sibling(store, way, options, opts);
}

c10::intrusive_ptr<c10d::Backend> SoloBackend::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                     const c10::intrusive_ptr<Options> &opts,
                                                     const int &rank, const int &size)
{
    OpenOptions options = options_;
    options.rank = rank;
    options.size = size;
    return sibling(store, "merge", options, opts);
}

c10::intrusive_ptr<c10d::Backend> SoloBackend::shrink(const std::vector<int64_t> &exclude,
                                                      int flags,
                                                      const c10::intrusive_ptr<Options> &opts)
{
    const std::set<int64_t> gone(exclude.begin(), exclude.end());
    std::string name = "without";
    for (int64_t rank : gone) {
        TORCH_CHECK(rank >= 0 && rank < size_, "solo: shrink without rank ", rank,
                    ": this group has ranks 0 to ", size_ - 1);
        TORCH_CHECK(rank != rank_, "solo: rank ", rank_, " is excluded by shrink and called it");
        name += " " + std::to_string(rank);
    }
    if (flags & 1) {
        abort();
    }
    OpenOptions options = options_;
    options.rank = 0;
    for (int i = 0; i < rank_; i++) {
        options.rank += gone.count(i) ? 0 : 1;
    }
    options.size = size_ - static_cast<int>(gone.size());
    options.name += "/" + name; // shrunk again, it is another group
    return sibling(store_, "shrink", options, opts);
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

// A handle is a card: where this process can be met, good for one group.
c10d::ReconfigureHandle SoloBackend::get_reconfigure_handle() const
{
    if (!meeting_) {
        OpenOptions options = options_;
        options.rank = 0;
        options.size = 1; // both are known once all handles are
        meeting_ = std::make_unique<Meeting>(options);
    }
    return meeting_->card();
}

WorkPtr SoloBackend::reconfigure(const c10d::ReconfigureOptions &opts)
{
    std::vector<std::string> handles;
    if (const auto *list = std::get_if<std::vector<std::string>>(&opts.handles)) {
        handles = *list;
    } else {
        const auto &set = std::get<std::unordered_set<std::string>>(opts.handles);
        handles.assign(set.begin(), set.end());
        std::sort(handles.begin(), handles.end()); // the same order on every rank
    }
    TORCH_CHECK(uuids_.insert(opts.uuid).second, "solo: reconfigure with uuid ", opts.uuid,
                ", which this group had before: give a fresh one");
    const auto own = get_reconfigure_handle();
    const auto mine = std::find(handles.begin(), handles.end(), own);
    TORCH_CHECK(mine != handles.end(), "solo: reconfigure with ", handles.size(),
                " handles, and this process's own is not among them: a handle is good for one "
                "group, so get a new one after each reconfigure");
    const auto rank = static_cast<int>(mine - handles.begin());
    const auto timeout = opts.timeout.value_or(options_.timeout);
    const std::unique_ptr<Meeting> meeting = std::move(meeting_); // used, whatever comes of it
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (device_side_) {
            device_side_->abort("it is formed anew"); // what it has under way is of the old group
        }
        device_side_.reset();
    }
    if (group_) {
        solo_group_abort(group_.get(), "it is formed anew");
        group_.reset();
    }
    meeting->connect(static_cast<uint32_t>(rank), handles, timeout);
    // What it opens from now on is told apart from what it had opened.
    options_.name = name_ + "/" + std::to_string(opts.uuid);
    rank_ = options_.rank = rank;
    size_ = options_.size = static_cast<int>(handles.size());
    group_ = meeting->group();
    auto work = new_work({c10d::OpType::UNKNOWN, "solo:reconfigure"}, std::nullopt, {});
    work->complete();
    return work;
}

#endif

} // namespace solo_c10d
