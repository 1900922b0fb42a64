// open.cpp - the ranks of a group meet: a card of each in the store, then libsolo connects them.
#include "c10d/open.h"

#include "c10d/errors.h"

namespace solo_c10d
{

uint32_t timeout_ms(milliseconds timeout)
{
    if (timeout <= milliseconds(0)) {
        return 0; // the group's
    }
    return static_cast<uint32_t>(std::min<int64_t>(timeout.count(), UINT32_MAX));
}

namespace
{

std::string card_key(const OpenOptions &options, int rank)
{
    return "solo/card/" + std::to_string(options.generation) + "/" + std::to_string(rank);
}

// How often this process has opened a group of this name before: the same on every rank. A store
// may be used to form a group again, while others still withdraw their old cards from it.
uint64_t next_generation(const std::string &name)
{
    static std::mutex mutex;
    static std::unordered_map<std::string, uint64_t> opened;
    std::lock_guard<std::mutex> guard(mutex);
    return opened[name]++;
}

} // namespace

std::vector<std::string> exchange_cards(const c10::intrusive_ptr<c10d::Store> &store,
                                        const OpenOptions &options, const std::string &own)
{
    store->set(card_key(options, options.rank), std::vector<uint8_t>(own.begin(), own.end()));
    std::vector<std::string> keys;
    for (int i = 0; i < options.size; i++) {
        keys.push_back(card_key(options, i));
    }
    try {
        store->wait(keys, options.timeout);
    } catch (const std::exception &error) {
        std::string missing;
        for (int i = 0; i < options.size; i++) {
            if (!store->check({keys[i]})) {
                missing += (missing.empty() ? "" : ", ") + std::to_string(i);
            }
        }
        throw_error(SOLO_ETIMEDOUT, "group \"" + options.name + "\": rank " + missing +
                                        " did not come within " +
                                        std::to_string(options.timeout.count() / 1000.0) +
                                        " s: see why it did not start or stopped");
    }
    std::vector<std::vector<uint8_t>> values;
    if (store->hasExtendedApi()) {
        values = store->multiGet(keys);
    } else {
        for (const auto &key : keys) {
            values.push_back(store->get(key));
        }
    }
    std::vector<std::string> cards;
    for (const auto &value : values) {
        cards.emplace_back(value.begin(), value.end());
    }
    return cards;
}

namespace
{

// The same store may be used to form the group again: an old card would be met first.
void withdraw_card(const c10::intrusive_ptr<c10d::Store> &store, const OpenOptions &options)
{
    try {
        store->deleteKey(card_key(options, options.rank));
    } catch (const std::exception &) {
        return; // a store that cannot delete, or is gone: nobody will read it either
    }
}

// Which ranks share memory: those of one host, unless the environment says otherwise.
std::string host_id_of(const OpenOptions &options)
{
    const char *shm = std::getenv("SOLO_GROUP_SHM");
    if (shm && std::string(shm) == "0") {
        return "alone-" + std::to_string(options.rank);
    }
    const char *id = std::getenv("SOLO_HOST_ID");
    return id ? id : "";
}

} // namespace

Meeting::Meeting(const OpenOptions &options)
{
    solo_group_config config{};
    config.size = sizeof config;
    config.rank = static_cast<uint32_t>(options.rank);
    config.world = static_cast<uint32_t>(options.size);
    config.timeout_ms = timeout_ms(options.timeout);
    config.name = options.name.c_str();
    config.store_host = options.store_host.c_str();
    const auto host_id = host_id_of(options);
    config.host_id = host_id.c_str();
    config.interface = std::getenv("SOLO_SOCKET_IFNAME");
    char card[SOLO_CARD_MAX];
    solo_group *group = nullptr;
    check(solo_group_prepare(&config, &group, card));
    group_ = GroupPtr(group, solo_group_close);
    card_ = card;
}

void Meeting::connect(uint32_t rank, const std::vector<std::string> &cards, milliseconds timeout)
{
    std::vector<const char *> texts;
    for (const auto &text : cards) {
        texts.push_back(text.c_str());
    }
    check(solo_group_place(group_.get(), rank, static_cast<uint32_t>(cards.size())));
    check(solo_group_connect(group_.get(), texts.data(), timeout_ms(timeout)));
}

GroupPtr open_group(const c10::intrusive_ptr<c10d::Store> &store, OpenOptions options)
{
    options.generation = options.own_store ? 0 : next_generation(options.name);
    Meeting meeting(options);
    try {
        meeting.connect(static_cast<uint32_t>(options.rank),
                        exchange_cards(store, options, meeting.card()), options.timeout);
    } catch (...) {
        withdraw_card(store, options);
        throw;
    }
    withdraw_card(store, options); // all have met, so all have read it
    return meeting.group();
}

} // namespace solo_c10d
