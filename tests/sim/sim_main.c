/* sim - the protocol under seeds.
 *
 *     sim --seeds N [--from S]   N seeds beginning with S (0); prints the first that fails
 *     sim --seed S [--trace]     one, with its trace */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static struct {
    uint64_t worlds, events, commits, aborts, rejoins, excused, nodes, most_nodes;
} total;

static int run(uint64_t seed, bool trace)
{
    static struct world world;
    world_init(&world, seed, trace);
    bool good = world_run(&world);
    total.worlds++;
    total.events += world.events;
    total.commits += world.commits;
    total.aborts += world.aborts;
    total.rejoins += world.rejoins;
    total.excused += world.excused;
    total.nodes += world.node_count;
    total.most_nodes = world.node_count > total.most_nodes ? world.node_count : total.most_nodes;
    if (!good) {
        printf("seed %" PRIu64 " fails at %.6f s: %s\n", seed, (double)world.now_us / 1e6,
               world.failure);
        printf("see it: sim --seed %" PRIu64 " --trace\n", seed);
    }
    world_free(&world);
    return good ? 0 : 1;
}

static void report(void)
{
    printf("%" PRIu64 " seeds: %" PRIu64 " events, %" PRIu64 " nodes (up to %" PRIu64
           " in one), %" PRIu64 " rounds committed, %" PRIu64 " attempts aborted, %" PRIu64
           " rejoined, %" PRIu64 " settled without a node that was alive\n",
           total.worlds, total.events, total.nodes, total.most_nodes, total.commits, total.aborts,
           total.rejoins, total.excused);
}

int main(int argc, char **argv)
{
    uint64_t from = 0, seeds = 0;
    bool trace = false, all = false;
    for (int i = 1; i < argc; i++) {
        uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--trace") == 0) {
            trace = true;
        } else if (strcmp(argv[i], "--all") == 0) {
            all = true; /* goes on after a failure */
        } else if (strcmp(argv[i], "--seed") == 0) {
            from = value;
            seeds = 1;
            i++;
        } else if (strcmp(argv[i], "--seeds") == 0) {
            seeds = value;
            i++;
        } else if (strcmp(argv[i], "--from") == 0) {
            from = value;
            i++;
        }
    }
    if (seeds == 0) {
        fprintf(stderr, "usage: sim --seeds N [--from S] [--all] | --seed S [--trace]\n");
        return 2;
    }
    int failed = 0;
    for (uint64_t seed = from; seed < from + seeds && (!failed || all); seed++) {
        failed += run(seed, trace);
    }
    report();
    return failed > 0;
}
