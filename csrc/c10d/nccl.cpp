#include "c10d/nccl.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "c10d/errors.h"

namespace solo_c10d
{

// ---- the library ------------------------------------------------------------------------------

namespace
{

constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4;

} // namespace

struct NcclLibrary {
    int (*get_unique_id)(NcclId *id);
    int (*comm_init)(void **comm, int world, NcclId id, int rank, NcclConfig *config);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    int (*comm_error)(void *comm, int *error);
    const char *(*error_text)(int result);
    int (*group_start)();
    int (*group_end)();
    int (*all_reduce)(const void *, void *, size_t, int type, int op, void *comm, void *stream);
    int (*reduce)(const void *, void *, size_t, int type, int op, int root, void *, void *);
    int (*broadcast)(const void *, void *, size_t, int type, int root, void *comm, void *stream);
    int (*all_gather)(const void *, void *, size_t, int type, void *comm, void *stream);
    int (*reduce_scatter)(const void *, void *, size_t, int type, int op, void *, void *);
    int (*send)(const void *, size_t, int type, int peer, void *comm, void *stream);
    int (*receive)(void *, size_t, int type, int peer, void *comm, void *stream);
    int (*make_factor)(int *op, void *factor, int type, int residence, void *comm);
    int (*drop_factor)(int op, void *comm);
};

namespace
{

void *open_library(at::DeviceType type)
{
    const char *wanted = std::getenv("SOLO_NCCL");
    if (wanted && std::strcmp(wanted, "0") == 0) {
        return nullptr;
    }
    if (wanted && wanted[0]) {
        void *handle = dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
        TORCH_CHECK(handle, "solo: SOLO_NCCL=", wanted, " cannot be loaded: ", dlerror());
        return handle;
    }
    if (type != at::kCUDA) {
        return nullptr;
    }
    void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD); // torch's
    return handle ? handle : dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
}

template <typename Function> bool find(void *handle, const char *name, Function *out)
{
    void *found = dlsym(handle, name);
    std::memcpy(out, &found, sizeof found);
    return found != nullptr;
}

bool find_all(void *handle, NcclLibrary *out)
{
    return find(handle, "ncclGetUniqueId", &out->get_unique_id) &&
           find(handle, "ncclCommInitRankConfig", &out->comm_init) &&
           find(handle, "ncclCommDestroy", &out->comm_destroy) &&
           find(handle, "ncclCommAbort", &out->comm_abort) &&
           find(handle, "ncclCommGetAsyncError", &out->comm_error) &&
           find(handle, "ncclGetErrorString", &out->error_text) &&
           find(handle, "ncclGroupStart", &out->group_start) &&
           find(handle, "ncclGroupEnd", &out->group_end) &&
           find(handle, "ncclAllReduce", &out->all_reduce) &&
           find(handle, "ncclReduce", &out->reduce) &&
           find(handle, "ncclBroadcast", &out->broadcast) &&
           find(handle, "ncclAllGather", &out->all_gather) &&
           find(handle, "ncclReduceScatter", &out->reduce_scatter) &&
           find(handle, "ncclSend", &out->send) && find(handle, "ncclRecv", &out->receive) &&
           find(handle, "ncclRedOpCreatePreMulSum", &out->make_factor) &&
           find(handle, "ncclRedOpDestroy", &out->drop_factor);
}

} // namespace

const NcclLibrary *Nccl::library(at::DeviceType type)
{
    static std::mutex mutex;
    static NcclLibrary found;
    static bool looked = false, has = false;
    std::lock_guard<std::mutex> guard(mutex);
    if (!looked) {
        void *handle = open_library(type); // stays open: so may NCCL's own threads
        has = handle && find_all(handle, &found);
        looked = true;
    }
    return has ? &found : nullptr;
}

namespace
{

struct Uuid {
    uint64_t halves[2];
};

struct Driver {
    int (*get)(int *, int) = nullptr;
    int (*uuid_of)(Uuid *, int) = nullptr;
    bool has = false;
};

// Torch has loaded it by the time that there is a tensor of a GPU; it stays.
const Driver &driver()
{
    static const Driver found = [] {
        Driver driver;
        void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        driver.has = handle && find(handle, "cuDeviceGet", &driver.get) &&
                     find(handle, "cuDeviceGetUuid", &driver.uuid_of);
        return driver;
    }();
    return found;
}

} // namespace

uint64_t Nccl::gpu_of(at::Device device)
{
    // The driver's name of it, the same under every CUDA_VISIBLE_DEVICES.
    int handle = 0;
    Uuid uuid{};
    if (driver().has && driver().get(&handle, device.index()) == 0 &&
        driver().uuid_of(&uuid, handle) == 0) {
        return uuid.halves[0] ^ uuid.halves[1] * 31;
    }
    const char *visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return std::hash<std::string>()(std::string(visible ? visible : "") + "#" +
                                    std::to_string(device.index()));
}

// ---- a communicator ---------------------------------------------------------------------------

NcclId Nccl::new_id(const NcclLibrary *library)
{
    NcclId id{};
    const int result = library->get_unique_id(&id);
    TORCH_CHECK(result == kSuccess, "solo: NCCL gives no id: ", library->error_text(result));
    return id;
}

Nccl::Nccl(const NcclLibrary *library, const NcclId &id, int rank, int world, at::Device device,
           std::chrono::steady_clock::time_point deadline)
    : library_(library), rank_(rank), world_(world), device_(device)
{
    const c10::DeviceGuard guard(device);
    NcclConfig config;
    const int result = library_->comm_init(&comm_, world, id, rank, &config);
    try {
        TORCH_CHECK(result == kSuccess || result == kInProgress,
                    "solo: NCCL cannot begin: ", library_->error_text(result));
        settle(deadline, "meeting the other ranks");
    } catch (...) {
        abort();
        throw;
    }
}

Nccl::~Nccl()
{
    if (comm_) {
        const c10::DeviceGuard guard(device_);
        library_->comm_destroy(comm_);
    }
}

void Nccl::abort()
{
    if (comm_) {
        const c10::DeviceGuard guard(device_);
        library_->comm_abort(comm_);
        comm_ = nullptr;
    }
}

std::string Nccl::fault() const
{
    int error = kSuccess;
    if (!comm_ || library_->comm_error(comm_, &error) != kSuccess) {
        return "NCCL's communicator is gone";
    }
    return error == kSuccess || error == kInProgress
               ? ""
               : std::string("NCCL: ") + library_->error_text(error);
}

void Nccl::check(int result, const char *what) const
{
    if (result != kSuccess && result != kInProgress) {
        throw_error(SOLO_ESYS, std::string("NCCL, ") + what + ": " + library_->error_text(result));
    }
}

// The communicator blocks nobody: what it was asked for is begun once it says so.
void Nccl::settle(std::chrono::steady_clock::time_point deadline, const char *what) const
{
    int error = kInProgress;
    while (error == kInProgress) {
        check(library_->comm_error(comm_, &error), what);
        check(error, what);
        if (error == kInProgress) {
            if (std::chrono::steady_clock::now() > deadline) {
                throw_error(SOLO_ETIMEDOUT, std::string("NCCL, ") + what + ": Timed out");
            }
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }
}

// ---- operations -------------------------------------------------------------------------------

namespace
{

// -1: NCCL has no such type.
int type_of(solo_dtype dtype)
{
    switch (dtype) {
    case SOLO_I8:
        return 0;
    case SOLO_U8:
        return 1;
    case SOLO_I32:
        return 2;
    case SOLO_U32:
        return 3;
    case SOLO_I64:
        return 4;
    case SOLO_U64:
        return 5;
    case SOLO_F16:
        return 6;
    case SOLO_F32:
        return 7;
    case SOLO_F64:
        return 8;
    case SOLO_BF16:
        return 9;
    default:
        return -1;
    }
}

constexpr int kBytes = 1; // how what is not reduced moves

bool reduces(solo_op_kind kind)
{
    return kind == SOLO_OP_ALLREDUCE || kind == SOLO_OP_REDUCE || kind == SOLO_OP_REDUCE_SCATTER;
}

bool parts_adjoin(const solo_part *parts, uint32_t count, size_t element)
{
    for (uint32_t i = 1; i < count; i++) {
        const auto *end = static_cast<uint8_t *>(parts[i - 1].bytes) + parts[i - 1].count * element;
        if (parts[i].count != parts[0].count || parts[i].bytes != end) {
            return false;
        }
    }
    return parts[0].count > 0;
}

} // namespace

bool Nccl::adjoin(const std::vector<solo_op> &ops)
{
    return std::all_of(ops.begin(), ops.end(), [](const solo_op &op) {
        const size_t element = solo_dtype_bytes(op.dtype);
        return op.kind == SOLO_OP_ALLGATHER        ? parts_adjoin(op.out, op.out_count, element)
               : op.kind == SOLO_OP_REDUCE_SCATTER ? parts_adjoin(op.in, op.in_count, element)
                                                   : true;
    });
}

bool Nccl::has(const solo_op &op)
{
    if (op.kind == SOLO_OP_BARRIER) {
        return false;
    }
    if (!reduces(op.kind)) {
        return true;
    }
    const bool whole = op.dtype >= SOLO_I8 && op.dtype <= SOLO_U64;
    switch (op.reduce) {
    case SOLO_REDUCE_SUM:
    case SOLO_REDUCE_PRODUCT:
    case SOLO_REDUCE_MIN:
    case SOLO_REDUCE_MAX:
        return type_of(op.dtype) >= 0;
    case SOLO_REDUCE_AVG:
    case SOLO_REDUCE_PREMUL:
        return type_of(op.dtype) >= 0 && !whole;
    default:
        return false;
    }
}

int Nccl::reduction(const solo_op &op)
{
    switch (op.reduce) {
    case SOLO_REDUCE_PRODUCT:
        return kProduct;
    case SOLO_REDUCE_MIN:
        return kMin;
    case SOLO_REDUCE_MAX:
        return kMax;
    case SOLO_REDUCE_AVG:
        return kAverage;
    case SOLO_REDUCE_PREMUL:
        break;
    default:
        return kSum;
    }
    // The factor is read at once, in the type of the tensor.
    double factor = op.factor;
    float single = static_cast<float>(factor);
    const auto half = c10::Half(single);
    const auto brain = c10::BFloat16(single);
    const void *at = op.dtype == SOLO_F64   ? static_cast<const void *>(&factor)
                     : op.dtype == SOLO_F32 ? static_cast<const void *>(&single)
                     : op.dtype == SOLO_F16 ? static_cast<const void *>(&half)
                                            : static_cast<const void *>(&brain);
    int made = 0;
    check(library_->make_factor(&made, const_cast<void *>(at), type_of(op.dtype), 1, comm_),
          "making a factor");
    reductions_.push_back(made);
    return made;
}

// Parts that do not adjoin: each rank's own, one after the other.
void Nccl::enqueue_gathered(const solo_op &op, void *stream)
{
    const size_t element = solo_dtype_bytes(op.dtype);
    const bool gathers = op.kind == SOLO_OP_ALLGATHER;
    const int how = gathers ? 0 : reduction(op);
    for (int i = 0; i < world_; i++) {
        const solo_part &part = gathers ? op.out[i] : op.in[i];
        if (part.count && gathers) {
            const void *from = i == rank_ ? op.in[0].bytes : part.bytes;
            check(library_->broadcast(from, part.bytes, part.count * element, kBytes, i, comm_,
                                      stream),
                  "all_gather");
        } else if (part.count) {
            void *into = i == rank_ ? op.out[0].bytes : nullptr;
            check(library_->reduce(part.bytes, into, part.count, type_of(op.dtype), how, i, comm_,
                                   stream),
                  "reduce_scatter");
        }
    }
}

// Gather, scatter, all_to_all: what each rank has for each other.
void Nccl::enqueue_exchange(const solo_op &op, void *stream)
{
    const size_t element = solo_dtype_bytes(op.dtype);
    const bool everyone = op.kind == SOLO_OP_ALLTOALL;
    const int root = static_cast<int>(op.root);
    for (int i = 0; i < world_; i++) {
        const bool gives = everyone || (op.kind == SOLO_OP_GATHER ? i == root : rank_ == root);
        const bool takes = everyone || (op.kind == SOLO_OP_GATHER ? rank_ == root : i == root);
        const solo_part *from = gives ? &op.in[op.in_count == 1 && !everyone ? 0 : i] : nullptr;
        const solo_part *into = takes ? &op.out[op.out_count == 1 && !everyone ? 0 : i] : nullptr;
        if (from && from->count) {
            check(library_->send(from->bytes, from->count * element, kBytes, i, comm_, stream),
                  "sending");
        }
        if (into && into->count) {
            check(library_->receive(into->bytes, into->count * element, kBytes, i, comm_, stream),
                  "receiving");
        }
    }
}

void Nccl::enqueue_one(const solo_op &op, bool adjoin, void *stream)
{
    const size_t element = solo_dtype_bytes(op.dtype);
    const int type = type_of(op.dtype), root = static_cast<int>(op.root);
    switch (op.kind) {
    case SOLO_OP_BROADCAST:
        check(library_->broadcast(op.out[0].bytes, op.out[0].bytes, op.out[0].count * element,
                                  kBytes, root, comm_, stream),
              "broadcast");
        return;
    case SOLO_OP_ALLREDUCE:
        check(library_->all_reduce(op.in[0].bytes, op.out[0].bytes, op.in[0].count, type,
                                   reduction(op), comm_, stream),
              "all_reduce");
        return;
    case SOLO_OP_REDUCE:
        check(library_->reduce(op.in[0].bytes, op.out_count ? op.out[0].bytes : nullptr,
                               op.in[0].count, type, reduction(op), root, comm_, stream),
              "reduce");
        return;
    case SOLO_OP_ALLGATHER:
        if (adjoin) {
            check(library_->all_gather(op.in[0].bytes, op.out[0].bytes, op.in[0].count * element,
                                       kBytes, comm_, stream),
                  "all_gather");
            return;
        }
        return enqueue_gathered(op, stream);
    case SOLO_OP_REDUCE_SCATTER:
        if (adjoin) {
            check(library_->reduce_scatter(op.in[0].bytes, op.out[0].bytes, op.out[0].count, type,
                                           reduction(op), comm_, stream),
                  "reduce_scatter");
            return;
        }
        return enqueue_gathered(op, stream);
    case SOLO_OP_GATHER:
    case SOLO_OP_SCATTER:
    case SOLO_OP_ALLTOALL:
        return enqueue_exchange(op, stream);
    case SOLO_OP_BARRIER:
    case SOLO_OP_KIND_COUNT:
        break;
    }
}

void Nccl::enqueue(const std::vector<solo_op> &ops, bool adjoin, c10::Stream stream,
                   std::chrono::steady_clock::time_point deadline)
{
    const c10::DeviceGuard guard(device_);
    check(library_->group_start(), "beginning");
    try {
        for (const auto &op : ops) {
            enqueue_one(op, adjoin, stream.native_handle());
        }
    } catch (...) {
        library_->group_end();
        throw;
    }
    check(library_->group_end(), "beginning");
    settle(deadline, "beginning");
    for (int made : reductions_) {
        library_->drop_factor(made, comm_);
    }
    reductions_.clear();
}

} // namespace solo_c10d
