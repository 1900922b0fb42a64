#include "c10d/device.h"

#include <c10/core/StreamGuard.h>

#include "c10d/errors.h"

namespace solo_c10d
{

DeviceSide::DeviceSide(c10::intrusive_ptr<c10d::Store> store, OpenOptions options, GroupPtr main)
    : store_(std::move(store)), options_(std::move(options)), main_(std::move(main))
{
    options_.name += "/device";
}

// ---- taking a call ----------------------------------------------------------------------------

namespace
{

// Says, for a stream, when what the caller enqueued before is done.
c10::Event now_on(at::Device device)
{
    const c10::impl::VirtualGuardImpl impl(device.type());
    c10::Event ready(device.type());
    ready.record(impl.getStream(device));
    return ready;
}

Deadline deadline_in(milliseconds timeout)
{
    return std::chrono::steady_clock::now() + timeout;
}

std::string what(const std::exception_ptr &error)
{
    try {
        std::rethrow_exception(error);
    } catch (const c10::Error &failure) {
        return failure.what_without_backtrace();
    } catch (const std::exception &failure) {
        return failure.what();
    }
}

} // namespace

void DeviceSide::run(c10::intrusive_ptr<SoloWork> work, Call call, milliseconds timeout)
{
    const auto device = call.device();
    work->on_device(device);
    {
        std::lock_guard<std::mutex> guard(mutex_);
        timeout = timeout > milliseconds(0) ? timeout : options_.timeout;
    }
    auto job = std::make_shared<Job>(
        Job{std::move(work), std::move(call), now_on(device), deadline_in(timeout)});
    collectives_.post([self = shared_from_this(), job] { self->begin(*job); });
}

void DeviceSide::begin(Job &job)
{
    std::exception_ptr error;
    try {
        open();
        go(job);
        return;
    } catch (...) {
        error = std::current_exception();
    }
    break_own(what(error)); // others may wait for this rank
    job.work->complete(error);
}

// Every rank comes here with its first collective.
void DeviceSide::open()
{
    OpenOptions options;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (!aborted_.empty()) {
            throw_error(SOLO_EABORTED, aborted_);
        }
        if (own_) {
            return;
        }
        options = options_;
    }
    auto group = open_group(store_, options);
    std::lock_guard<std::mutex> guard(mutex_);
    own_ = std::move(group);
}

void DeviceSide::on_own(const solo_op &op, Deadline deadline)
{
    check(solo_group_run(own_.get(), &op, 1, left_ms(deadline)));
}

Streams &DeviceSide::streams_on(at::Device device, std::map<int, Streams> &all)
{
    return all.try_emplace(device.index(), device).first->second;
}

// ---- doing it ---------------------------------------------------------------------------------

void DeviceSide::go(Job &job)
{
    const auto device = job.call.device();
    const auto *library = Nccl::library(device.type());
    solo_group_figures figures{};
    solo_group_stats(own_.get(), &figures);

    Intent mine = intent_of(job.call.ops());
    const bool one_host = figures.local_ranks == static_cast<uint32_t>(options_.size);
    const bool its_device = !nccl_ || nccl_->device() == device;
    mine.nccl = library && one_host && its_device &&
                std::all_of(job.call.ops().begin(), job.call.ops().end(), Nccl::has);
    mine.adjoins = Nccl::adjoin(job.call.ops());
    mine.gpu = mine.nccl ? Nccl::gpu_of(device) : 0;

    std::vector<Intent> all(options_.size);
    std::vector<solo_part> parts;
    for (auto &intent : all) {
        parts.push_back({&intent, sizeof intent});
    }
    const solo_part own{&mine, sizeof mine};
    solo_op compare{};
    compare.kind = SOLO_OP_ALLGATHER;
    compare.dtype = SOLO_BYTES;
    compare.in = &own, compare.in_count = 1;
    compare.out = parts.data(), compare.out_count = static_cast<uint32_t>(parts.size());
    on_own(compare, job.deadline);

    const auto verdict = judge(all, job.call.ops());
    auto &streams = streams_on(device, streams_);
    job.ready.block(streams.down);
    job.ready.block(streams.up);
    if (verdict.nccl) {
        go_nccl(job, verdict, streams);
    } else {
        staging_.run(job.call.ops(), verdict.most, options_.rank, options_.size, streams,
                     job.deadline, [&](const solo_op &op) { on_own(op, job.deadline); });
    }
    conclude(*job.work, job.call, streams);
}

// All is enqueued: who waits for the work now waits for streams.up.
std::shared_ptr<c10::Event> DeviceSide::conclude(SoloWork &work, Call &call, const Streams &streams)
{
    const c10::StreamGuard guard(streams.up);
    call.write_back();
    for (const auto &tensor : call.tensors()) { // freed by the caller, it is ours until then
        if (tensor.device() == streams.up.device()) {
            streams.impl.recordDataPtrOnStream(tensor.storage().data_ptr(), streams.up);
        }
    }
    auto done = std::make_shared<c10::Event>(streams.up.device_type());
    done->record(streams.up);
    work.ends_with(done);
    work.complete();
    return done;
}

DeviceSide::~DeviceSide()
{
    if (nccl_ && !flights_.empty()) {
        nccl_->abort(); // else it would be waited for
    }
}

// ---- with NCCL --------------------------------------------------------------------------------

// What each rank has for each other, compared: NCCL would wait for ever.
void DeviceSide::check_shares(const solo_op &op, Deadline deadline)
{
    const size_t world = op.in_count;
    std::vector<uint64_t> mine(world), theirs(world);
    std::vector<solo_part> in, out;
    for (size_t i = 0; i < world; i++) {
        mine[i] = op.in[i].count;
        in.push_back({&mine[i], 1});
        out.push_back({&theirs[i], 1});
    }
    solo_op lengths{};
    lengths.kind = SOLO_OP_ALLTOALL;
    lengths.dtype = SOLO_I64;
    lengths.in = in.data(), lengths.in_count = op.in_count;
    lengths.out = out.data(), lengths.out_count = op.in_count;
    on_own(lengths, deadline);
    for (size_t i = 0; i < world; i++) {
        if (theirs[i] != op.out[i].count) {
            throw_error(SOLO_EMISMATCH, "all_to_all: rank " + std::to_string(i) + " gives " +
                                            std::to_string(theirs[i]) + " elements, rank " +
                                            std::to_string(options_.rank) + " has room for " +
                                            std::to_string(op.out[i].count));
        }
    }
}

void DeviceSide::meet_nccl(Job &job)
{
    const auto *library = Nccl::library(job.call.device().type());
    NcclId id{};
    if (options_.rank == 0) {
        id = Nccl::new_id(library);
    }
    const solo_part part{&id, sizeof id};
    solo_op tell{};
    tell.kind = SOLO_OP_BROADCAST;
    tell.dtype = SOLO_BYTES;
    tell.out = &part, tell.out_count = 1;
    on_own(tell, job.deadline);
    nccl_ = std::make_unique<Nccl>(library, id, options_.rank, options_.size, job.call.device(),
                                   job.deadline);
    // A message that never comes, from each: it fails when that rank goes or gives up.
    static char nowhere;
    const auto failed = [](void *context, int, const char *text, uint32_t) {
        std::unique_ptr<std::shared_ptr<Gone>> gone(static_cast<std::shared_ptr<Gone> *>(context));
        std::lock_guard<std::mutex> guard((*gone)->mutex);
        (*gone)->text = (*gone)->text.empty() ? text : (*gone)->text;
    };
    for (int i = 0; i < options_.size; i++) {
        if (i != options_.rank) {
            auto context = std::make_unique<std::shared_ptr<Gone>>(gone_);
            check(solo_group_receive(own_.get(), static_cast<uint32_t>(i), 0, &nowhere, 1,
                                     UINT32_MAX, failed, context.get()));
            context.release(); // the callback's now
        }
    }
}

void DeviceSide::go_nccl(Job &job, const Verdict &verdict, Streams &streams)
{
    if (!nccl_) {
        meet_nccl(job);
    }
    if (job.call.ops()[0].kind == SOLO_OP_ALLTOALL) {
        check_shares(job.call.ops()[0], job.deadline);
    }
    nccl_->enqueue(job.call.ops(), verdict.adjoin, streams.up, job.deadline);
    nccl_calls_++;
    auto done = std::make_shared<c10::Event>(streams.up.device_type());
    done->record(streams.up);
    flights_.push_back({std::move(done), job.deadline});
    collectives_.when_idle([self = shared_from_this()] { return self->watch(); });
}

// What NCCL was given ends in time, or is ended: it waits for ever for a rank that is gone.
bool DeviceSide::watch()
{
    while (!flights_.empty() && flights_.front().done->query()) {
        flights_.pop_front();
    }
    if (flights_.empty() || !nccl_) {
        return false;
    }
    const auto now = std::chrono::steady_clock::now();
    std::string why = nccl_->fault();
    if (now > flights_.front().deadline) {
        why = "NCCL did not finish in time";
    }
    std::string gone;
    {
        std::lock_guard<std::mutex> guard(gone_->mutex);
        gone = gone_->text;
    }
    if (!gone.empty() && !grace_) {
        grace_ = now + std::chrono::seconds(1); // it may have gone with all of it done
    }
    if (grace_ && now > *grace_) {
        why = gone;
    }
    if (why.empty()) {
        return true;
    }
    nccl_->abort();
    flights_.clear();
    break_own(why + "; results of NCCL that were not there yet never came");
    return false;
}

// ---- life -------------------------------------------------------------------------------------

void DeviceSide::break_own(const std::string &why)
{
    GroupPtr own;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (aborted_.empty()) {
            aborted_ = why.rfind("solo: ", 0) == 0 ? why.substr(6) : why;
        }
        own = own_;
    }
    if (own) {
        solo_group_abort(own.get(), why.c_str());
    }
}

bool DeviceSide::drain(milliseconds timeout)
{
    const auto deadline = deadline_in(timeout);
    return collectives_.drain(timeout) && messages_.drain(milliseconds(left_ms(deadline)));
}

void DeviceSide::abort(const char *why)
{
    break_own(why ? why : "this rank aborted the group");
}

int DeviceSide::health()
{
    std::lock_guard<std::mutex> guard(mutex_);
    if (own_) {
        return solo_group_health(own_.get());
    }
    return aborted_.empty() ? 0 : SOLO_EABORTED;
}

void DeviceSide::set_timeout(milliseconds timeout)
{
    std::lock_guard<std::mutex> guard(mutex_);
    options_.timeout = timeout;
}

} // namespace solo_c10d
