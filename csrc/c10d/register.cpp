// register.cpp - how Python reaches the backend: one operator, solo_c10d::open. torch binds
// ProcessGroup already, so a throw-away group carries the store in and the backend out, and no
// Python header is needed here.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include "c10d/backend.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

// The torch this was compiled against: the tables of virtual functions differ between minors, so
// backend.py and solorun look for this in the file before the file is loaded.
extern "C" __attribute__((used, visibility("default"))) const char solo_c10d_built_for[] =
    "solo: built for torch " TEXT(TORCH_VERSION_MAJOR) "." TEXT(TORCH_VERSION_MINOR);

namespace
{

void open_group(const c10::intrusive_ptr<c10d::ProcessGroup> &group, int64_t timeout_ms,
                std::string name, std::string store_host, bool later)
{
    solo_c10d::OpenOptions options;
    options.rank = group->getRank();
    options.size = group->getSize();
    options.timeout = std::chrono::milliseconds(timeout_ms);
    options.name = name;
    options.store_host = store_host;
    options.later = later;
    auto backend = c10::make_intrusive<solo_c10d::SoloBackend>(group->getStore(), options);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
}

} // namespace

TORCH_LIBRARY(solo, m)
{
    m.def("open(__torch__.torch.classes.c10d.ProcessGroup group, int timeout_ms, str name, "
          "str store_host, bool later) -> ()",
          open_group);
    m.def("nccl_calls(__torch__.torch.classes.c10d.ProcessGroup group) -> int",
          [](const c10::intrusive_ptr<c10d::ProcessGroup> &group) {
              const auto backend = group->getBackend(c10::DeviceType::CPU);
              return static_cast<int64_t>(backend->getMemoryStats().at("nccl_calls"));
          });
}
