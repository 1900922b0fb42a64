#include "c10d/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/errors.h"

namespace solo_c10d
{

// ---- opening ----------------------------------------------------------------------------------

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

} // namespace

namespace
{

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

SoloBackend::SoloBackend(const c10::intrusive_ptr<c10d::Store> &store, const OpenOptions &options)
    : Backend(options.rank, options.size), options_(options)
{
    options_.generation = next_generation(options.name);
    solo_group_config config{};
    config.size = sizeof config;
    config.rank = static_cast<uint32_t>(options.rank);
    config.world = static_cast<uint32_t>(options.size);
    config.timeout_ms = timeout_ms(options.timeout);
    config.name = options_.name.c_str();
    config.store_host = options_.store_host.c_str();
    const auto host_id = host_id_of(options);
    config.host_id = host_id.c_str();
    config.interface = std::getenv("SOLO_SOCKET_IFNAME");
    char card[SOLO_CARD_MAX];
    check(solo_group_prepare(&config, &group_, card));
    try {
        const auto cards = exchange_cards(store, options_, card);
        std::vector<const char *> texts;
        for (const auto &text : cards) {
            texts.push_back(text.c_str());
        }
        check(solo_group_connect(group_, texts.data(), 0));
    } catch (...) {
        withdraw_card(store, options_);
        solo_group_close(group_);
        throw;
    }
    withdraw_card(store, options_); // all have met, so all have read it
    init();
}

SoloBackend::~SoloBackend()
{
    solo_group_close(group_);
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
    const auto count = static_cast<uint32_t>(call.ops().size());
    if (!async) {
        const int rc = solo_group_run(group_, call.ops().data(), count, timeout_ms(timeout));
        finish(*work, call, rc, rc < 0 ? solo_error_text() : "");
        if (work->exception()) {
            std::rethrow_exception(work->exception());
        }
        return enlist(work);
    }
    auto pending = std::make_unique<Pending>(Pending{work, std::move(call)});
    check(solo_group_post(group_, pending->call.ops().data(), count, timeout_ms(timeout), on_done,
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
    check(receive ? solo_group_receive(group_, rank, wire_tag, part.bytes, size, 0, on_done,
                                       pending.get())
                  : solo_group_send(group_, rank, wire_tag, part.bytes, size, 0, on_done,
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
    solo_group_set_timeout(group_, timeout_ms(timeout));
}

uint64_t SoloBackend::getSequenceNumberForGroup()
{
    return calls_;
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
    if (opts) {
        options.timeout = opts->timeout;
        options.name = opts->group_name;
    }
    return c10::make_intrusive<SoloBackend>(
        c10::make_intrusive<c10d::PrefixStore>("solo/split/" + options.name, store), options);
}

void SoloBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook)
{
    TORCH_CHECK(!onCompletionHook_, "solo: an on-completion hook is registered already");
    onCompletionHook_ = std::move(hook);
}

void SoloBackend::waitForPendingWorks()
{
    check(solo_group_shutdown(group_, 0));
}

c10d::ErrorType SoloBackend::getError()
{
    switch (solo_group_health(group_)) {
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
    solo_group_abort(group_, nullptr);
}

void SoloBackend::shutdown()
{
    if (solo_group_shutdown(group_, 0) < 0 && solo_group_health(group_) == 0) {
        TORCH_WARN("solo: ", solo_error_text());
    }
}

std::unordered_map<std::string, uint64_t> SoloBackend::getMemoryStats()
{
    solo_group_figures stats{};
    solo_group_stats(group_, &stats);
    return {{"shared_bytes", stats.shared_bytes},
            {"staging_bytes", stats.staging_bytes},
            {"local_ranks", stats.local_ranks},
            {"hosts", stats.hosts},
            {"connections", stats.connections}};
}

} // namespace solo_c10d
