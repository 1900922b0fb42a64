// open.h - how the ranks of a group meet.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>

#include "solo_group.h"

namespace solo_c10d
{

using std::chrono::milliseconds;
using GroupPtr = std::shared_ptr<solo_group>; // closed by who gives it up last

struct OpenOptions {
    int rank = 0, size = 1;
    milliseconds timeout = milliseconds(30 * 60 * 1000);
    std::string name;
    uint64_t generation = 0; // set by open_group, unless the store is this group's alone
    bool own_store = false;
    bool later = false;     // formed by reconfigure
    std::string store_host; // whose route is our address; "" if the store has none
};

uint32_t timeout_ms(milliseconds timeout); // 0, the group's, for what torch leaves unset

// A group that is not connected yet: its card is to reach the others, by whatever way.
class Meeting
{
  public:
    explicit Meeting(const OpenOptions &options);
    const std::string &card() const
    {
        return card_;
    }
    // The cards of all, in rank order, and this rank. Throws if some do not come in time.
    void connect(uint32_t rank, const std::vector<std::string> &cards, milliseconds timeout);
    GroupPtr group() const
    {
        return group_;
    }

  private:
    GroupPtr group_;
    std::string card_;
};

// The store's word for every rank, in rank order; throws naming those that did not come.
std::vector<std::string> exchange_cards(const c10::intrusive_ptr<c10d::Store> &store,
                                        const OpenOptions &options, const std::string &own);

// Meets the other ranks through the store; throws if some do not come.
GroupPtr open_group(const c10::intrusive_ptr<c10d::Store> &store, OpenOptions options);

} // namespace solo_c10d
