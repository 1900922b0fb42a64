// fake_device.cpp - an accelerator made of this machine's memory, as torch device "privateuseone".
//
// What it has in common with a GPU is what the backend may get wrong: each stream is a thread, and
// every copy on it is late; freed memory is overwritten in the order of the stream it was made on,
// unless another stream was recorded as its user; nothing waits unless it is told to.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "fake_stream.h"

namespace
{

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 4, kPool = 8; // streams of a device beside its default one
std::atomic<int64_t> late_us{300};     // each copy takes so much longer
std::atomic<int64_t> device_syncs{0}, memory_now{0};
std::mutex trace_mutex;
bool tracing = false;
std::string trace; // copies in the order in which they were asked for

// ---- streams and events -----------------------------------------------------------------------

struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, done = 0;

    void reach(uint64_t version)
    {
        std::lock_guard<std::mutex> guard(mutex);
        done = std::max(done, version);
        changed.notify_all();
    }
    void await(uint64_t version)
    {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return done >= version; });
    }
};
using EventPtr = std::shared_ptr<Event>;

class FakeStream : public fake_stream
{
  public:
    FakeStream()
    {
        enqueue = [](fake_stream *stream, void (*act)(void *), void *context) {
            static_cast<FakeStream *>(stream)->give([act, context] { act(context); });
        };
        std::thread([this] { work(); }).detach(); // lives as long as the process
    }
    void give(std::function<void()> act)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        acts_.push_back(std::move(act));
        changed_.notify_all();
    }
    EventPtr mark()
    {
        auto event = std::make_shared<Event>();
        event->recorded = 1;
        give([event] { event->reach(1); });
        return event;
    }

  private:
    void work()
    {
        while (true) {
            std::function<void()> act;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                changed_.wait(lock, [&] { return !acts_.empty(); });
                act = std::move(acts_.front());
                acts_.pop_front();
            }
            act();
        }
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> acts_;
};

FakeStream &stream_of(c10::DeviceIndex device, c10::StreamId id)
{
    static std::mutex mutex;
    static std::unordered_map<int64_t, FakeStream *> streams; // never freed, as their threads
    std::lock_guard<std::mutex> guard(mutex);
    auto *&stream = streams[device * 100 + id];
    if (!stream) {
        stream = new FakeStream;
    }
    return *stream;
}

FakeStream &stream_of(const c10::Stream &stream)
{
    return stream_of(stream.device_index(), stream.id());
}

thread_local c10::DeviceIndex current_device = 0;
thread_local c10::StreamId current_stream[kDevices];

c10::Stream stream_now(c10::DeviceIndex device)
{
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), current_stream[device]);
}

// ---- memory -----------------------------------------------------------------------------------

struct Block {
    void *at;
    size_t size;
    c10::DeviceIndex device;
    c10::StreamId made_on;
    std::vector<EventPtr> users; // other streams, at the time of the free
    std::vector<c10::Stream> recorded;
};

void free_block(void *context)
{
    auto *block = static_cast<Block *>(context);
    for (const auto &stream : block->recorded) {
        block->users.push_back(stream_of(stream).mark());
    }
    stream_of(block->device, block->made_on).give([block] {
        for (const auto &user : block->users) {
            user->await(1);
        }
        std::memset(block->at, 0xA5, block->size);
        memory_now -= static_cast<int64_t>(block->size);
        // never given back: who still reads it finds the pattern and not another's bytes
        delete block;
    });
}

struct FakeAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t size) override
    {
        auto *block = new Block{std::calloc(1, size ? size : 1), size, current_device,
                                current_stream[current_device],  {},   {}};
        memory_now += static_cast<int64_t>(size);
        return {block->at, block, free_block, c10::Device(kType, current_device)};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return nullptr;
    }
    void copy_data(void *to, const void *from, size_t size) const override
    {
        std::memcpy(to, from, size);
    }
};

FakeAllocator allocator;

// ---- torch's interface to streams and events ----------------------------------------------------

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override
    {
        return kType;
    }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        const c10::Device before(kType, current_device);
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override
    {
        return {kType, current_device};
    }
    void setDevice(c10::Device device) const override
    {
        TORCH_CHECK(device.index() < kDevices, "the fake has ", kDevices, " devices");
        current_device = device.has_index() ? device.index() : current_device;
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        current_device = device.index();
    }
    c10::Stream getStream(c10::Device device) const override
    {
        return stream_now(device.has_index() ? device.index() : current_device);
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return c10::Stream(c10::Stream::UNSAFE, device, 0);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        static std::atomic<int> next{0};
        return c10::Stream(c10::Stream::UNSAFE, device, 1 + next++ % kPool);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        const auto before = stream_now(stream.device_index());
        current_stream[stream.device_index()] = stream.id();
        return before;
    }
    void *getStreamNativeHandle(const c10::Stream stream) const override
    {
        return static_cast<fake_stream *>(&stream_of(stream));
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return kDevices;
    }
    static EventPtr &event_in(void *event)
    {
        return *static_cast<EventPtr *>(event);
    }
    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
        if (!*event) {
            *event = new EventPtr(std::make_shared<Event>());
        }
        EventPtr held = event_in(*event);
        uint64_t version;
        {
            std::lock_guard<std::mutex> guard(held->mutex);
            version = ++held->recorded;
        }
        stream_of(stream).give([held, version] { held->reach(version); });
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        if (event) {
            EventPtr held = event_in(event);
            uint64_t version;
            {
                std::lock_guard<std::mutex> guard(held->mutex);
                version = held->recorded;
            }
            stream_of(stream).give([held, version] { held->await(version); });
        }
    }
    bool queryEvent(void *event) const override
    {
        if (!event) {
            return true;
        }
        std::lock_guard<std::mutex> guard(event_in(event)->mutex);
        return event_in(event)->done >= event_in(event)->recorded;
    }
    void synchronizeEvent(void *event) const override
    {
        if (event) {
            event_in(event)->await(event_in(event)->recorded);
        }
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        delete static_cast<EventPtr *>(event);
    }
    bool queryStream(const c10::Stream &) const override
    {
        return false;
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        stream_of(stream).mark()->await(1);
    }
    void synchronizeDevice(const c10::DeviceIndex) const override
    {
        device_syncs++;
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &stream) const override
    {
        if (auto *block = data.cast_context<Block>(free_block)) {
            block->recorded.push_back(stream);
        }
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

// ---- operators --------------------------------------------------------------------------------

at::Tensor fake_empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout>, std::optional<at::Device> device,
                      std::optional<bool>, std::optional<at::MemoryFormat> format)
{
    const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
    return at::detail::empty_generic(size, &allocator,
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     dtype.value_or(at::kFloat), format);
}

at::Tensor fake_empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<at::Device> device, std::optional<bool>)
{
    const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
    return at::detail::empty_strided_generic(size, stride, &allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             dtype.value_or(at::kFloat));
}

// The same memory as a CPU tensor; only what runs on the right stream may look at it.
at::Tensor seen(const at::Tensor &tensor)
{
    return at::for_blob(tensor.data_ptr(), tensor.sizes())
        .strides(tensor.strides())
        .options(at::TensorOptions(tensor.scalar_type()))
        .target_device(at::kCPU)
        .make_tensor();
}

at::Tensor fake_copy(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
    const auto device = from.device().is_cpu() ? to.device() : from.device();
    auto &stream = stream_of(stream_now(device.index()));
    {
        std::lock_guard<std::mutex> guard(trace_mutex);
        trace += !tracing ? "" : from.device().is_cpu() ? "up " : "down ";
    }
    stream.give([from = seen(from), to = seen(to)]() mutable { // not the memory: as on a GPU
        std::this_thread::sleep_for(std::chrono::microseconds(late_us));
        to.copy_(from);
    });
    if (!non_blocking) {
        stream.mark()->await(1);
    }
    return to;
}

at::Tensor fake_copy_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    if (from.sizes() != to.sizes()) {
        TORCH_CHECK(to.numel() == 0, "the fake does not resize");
        to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
        to.storage().set_data_ptr(allocator.allocate(from.nbytes()));
        to.storage().set_nbytes(from.nbytes());
    }
    return fake_copy(from, to, false);
}

// Late, on the current stream: what a kernel does that was just launched.
void fake_fill(at::Tensor tensor, double value, int64_t after_us)
{
    stream_of(stream_now(tensor.device().index()))
        .give([to = seen(tensor), value, after_us]() mutable {
            std::this_thread::sleep_for(std::chrono::microseconds(after_us));
            to.fill_(value);
        });
}

void fake_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    at::native::cpu_fallback(op, stack);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", fake_empty);
    m.impl("empty_strided", fake_empty_strided);
    m.impl("_copy_from", fake_copy);
    m.impl("_copy_from_and_resize", fake_copy_and_resize);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("view",
           static_cast<at::Tensor (*)(const at::Tensor &, c10::IntArrayRef)>(at::native::view));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fake_fallback>());
}

TORCH_LIBRARY(fake, m)
{
    m.def("fill(Tensor tensor, float value, int after_us) -> ()", fake_fill);
    m.def("late(int us) -> ()", [](int64_t us) { late_us = us; });
    m.def("device_syncs() -> int", [] { return device_syncs.load(); });
    m.def("memory() -> int", [] { return memory_now.load(); });
    m.def("trace(bool on) -> ()", [](bool on) {
        std::lock_guard<std::mutex> guard(trace_mutex);
        tracing = on;
        trace.clear();
    });
    m.def("traced() -> str", [] {
        std::lock_guard<std::mutex> guard(trace_mutex);
        return trace;
    });
    m.def("use_stream(int id) -> ()", [](int64_t id) { current_stream[current_device] = id; });
}
