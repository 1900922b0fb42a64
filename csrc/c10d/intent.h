// intent.h - what every rank is about to do on its device, compared before any of it is begun.
#pragma once

#include <vector>

#include "solo_group.h"

namespace solo_c10d
{

// What one rank tells the others.
struct Intent {
    uint64_t ops;
    uint32_t kind, dtype, reduce, root;
    uint32_t nccl;    // it has NCCL, and NCCL has all of this
    uint32_t adjoins; // gathered parts lie one behind the other
    uint64_t count;   // elements, where they are the same on every rank
    uint64_t sum;     // of all that must agree and has no field here
    uint64_t most;    // elements of the longest part
    uint64_t gpu;     // stands for its GPU, where it has NCCL
    double factor;
};

Intent intent_of(const std::vector<solo_op> &ops);

// What follows from all of them.
struct Verdict {
    bool nccl = false, adjoin = false;
    std::vector<uint64_t> most; // of each operation, on any rank
};

// Throws, on every rank alike, if two ranks differ: names both and what each does.
Verdict judge(const std::vector<Intent> &all, const std::vector<solo_op> &ops);

} // namespace solo_c10d
