/* The engine through solo.h alone: a master and nodes as threads of this process. */
#include <math.h>
#include <unistd.h>

#include "engine_kit.h"

TEST(nodes_that_did_more_weigh_more)
{
    open_master(2);
    open_node(0, "avg");
    open_node(1, "avg");
    attach_all(2);
    float start = nodes[0].weight[7];
    CHECK(start == 1 || start == 2);
    CHECK(nodes[1].weight[7] == start);
    CHECK_EQ(nodes[0].joined.replaced + nodes[1].joined.replaced, 1);
    for (uint32_t i = 0; i < 2; i++) {
        nodes[i].weight[7] += i ? 8 : 0;
        nodes[i].steps = 5 + i;
    }
    const uint64_t samples[] = {300, 100};
    merge_all(2, samples);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(nodes[i].weight[7] == start + 2);
        CHECK(nodes[i].weight[8] == start);
        CHECK_EQ(nodes[i].steps, 6);
        CHECK_EQ(nodes[i].result.version, 1);
        CHECK_EQ(nodes[i].result.contributor_count, 2);
        CHECK_EQ(nodes[i].result.outcome, SOLO_MERGED);
        CHECK_EQ(solo_job_version(nodes[i].solo), 1);
    }
    CHECK(nodes[0].result.digest == nodes[1].result.digest);
    close_all(2);
}

TEST(the_members_are_listed_in_slot_order_with_their_addresses)
{
    open_master(2);
    open_node(0, "avg");
    open_node(1, "avg");
    attach_all(2);
    const uint64_t samples[] = {1, 1};
    merge_all(2, samples);
    struct solo_member list[4];
    CHECK_EQ(solo_members(nodes[0].solo, list, 4), 2);
    CHECK_EQ(solo_members(nodes[0].solo, list + 1, 1), 1);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQ(list[i].slot, 0 + i * list[1].slot);
        CHECK_EQ(list[i].device_count, 2);
        CHECK_HAS(list[i].address, "127.0.0.1:");
    }
    char event[2048];
    CHECK(solo_next_event(nodes[0].solo, event, sizeof event) > 0);
    CHECK_EQ(event[0], '{');
    close_all(2);
}

TEST(the_anchor_and_its_momentum_can_be_read)
{
    open_master(1);
    open_node(0, "nesterov:lr=1,beta=0.5,ramp=0");
    attach_all(1);
    nodes[0].weight[3] -= 4; /* the delta is 4 */
    const uint64_t samples[] = {1};
    merge_all(1, samples);
    CHECK_EQ(nodes[0].result.outcome, SOLO_ALONE);
    static float anchor[ELEMENTS], momentum[ELEMENTS];
    CHECK_EQ(solo_read_anchor(nodes[0].solo, 0, anchor, momentum), 0);
    CHECK(momentum[3] == 4);
    CHECK(anchor[3] == 1 - (4 + 0.5f * 4));
    CHECK(nodes[0].weight[3] == anchor[3]);
    CHECK_EQ(solo_read_anchor(nodes[0].solo, 1, anchor, NULL), SOLO_ENOTSUP);
    CHECK_EQ(solo_read_anchor(nodes[0].solo, 2, anchor, NULL), SOLO_EINVAL);
    close_all(1);
}

#define LARGE (3u << 20)

static struct {
    float anchor[LARGE], value[LARGE];
    bool half_seen; /* by somebody else's command */
} large;

static void look_at_half(void *context, void *argument)
{
    struct solo *solo = context;
    (void)argument;
    if (large.anchor[LARGE - 1] > 0) {
        return;
    }
    large.half_seen = large.half_seen || large.anchor[0] > 0;
    CHECK_EQ(mailbox_post(solo->mailbox, look_at_half, solo, NULL), 0);
}

TEST(others_get_their_turn_while_a_large_anchor_is_read)
{
    static const struct solo_tensor tensor = {"large", LARGE, SOLO_F32, SOLO_PARAM};
    open_master(1);
    open_node(0, "avg");
    void *data[] = {large.value};
    for (uint32_t i = 0; i < LARGE; i++) {
        large.value[i] = (float)(i + 1);
    }
    CHECK_EQ(solo_attach(nodes[0].solo, &tensor, 1, data, NULL), 0);
    CHECK_EQ(mailbox_post(nodes[0].solo->mailbox, look_at_half, nodes[0].solo, NULL), 0);
    CHECK_EQ(solo_read_anchor(nodes[0].solo, 0, large.anchor, NULL), 0);
    CHECK(memcmp(large.anchor, large.value, sizeof large.anchor) == 0);
    CHECK(large.half_seen);
    close_all(1);
}

TEST(one_merge_at_a_time_and_a_wait_that_only_looks)
{
    open_master(2);
    open_node(0, "avg");
    open_node(1, "avg");
    attach_all(2);
    struct solo_handle *first, *second, *other;
    CHECK_EQ(submit(&nodes[0], 1, &first), 0);
    CHECK_EQ(submit(&nodes[0], 1, &second), SOLO_EAGAIN);
    CHECK_EQ(solo_wait(first, 0, &nodes[0].result), SOLO_EAGAIN);
    CHECK_EQ(solo_wait(first, 50, &nodes[0].result), SOLO_EAGAIN);
    char whom[256] = "";
    for (int i = 0; i < 100 && !whom[0]; i++) {
        usleep(20000);
        CHECK(solo_waiting_for(nodes[0].solo, whom, sizeof whom) >= 0);
    }
    CHECK(whom[0]);
    CHECK_EQ(submit(&nodes[1], 1, &other), 0);
    CHECK_EQ(solo_wait(first, 10000, &nodes[0].result), 0);
    CHECK_EQ(solo_wait(other, 10000, &nodes[1].result), 0);
    close_all(2);
}

TEST(a_merge_before_the_node_has_joined_is_an_error_and_not_a_wait)
{
    open_master(1);
    open_node(0, "avg");
    struct solo_handle *handle;
    CHECK_EQ(solo_submit(nodes[0].solo, nodes[0].data, NULL, &handle), SOLO_EINVAL);
    CHECK_EQ(submit(&nodes[0], 1, &handle), 0);
    CHECK_EQ(solo_wait(handle, 10000, &nodes[0].result), SOLO_EINVAL);
    attach_all(1);
    merge_all(1, (const uint64_t[]){1});
    close_all(1);
}

/* The others go on alone when one closes in the middle of its merge. */
TEST(closing_ends_the_merge_in_flight_and_leaves_the_data_as_it_was)
{
    open_master(2);
    open_node(0, "avg");
    open_node(1, "avg");
    attach_all(2);
    struct solo_handle *handle;
    nodes[0].weight[0] = 77;
    CHECK_EQ(submit(&nodes[0], 1, &handle), 0);
    solo_close(nodes[0].solo);
    CHECK_EQ(solo_wait(handle, 1000, &nodes[0].result), SOLO_ECLOSED);
    CHECK(nodes[0].weight[0] == 77);
    solo_close(nodes[1].solo);
    close_master();
}

TEST(leaving_ends_the_merge_in_flight)
{
    open_master(2);
    open_node(0, "avg");
    open_node(1, "avg");
    attach_all(2);
    struct solo_handle *handle;
    CHECK_EQ(submit(&nodes[0], 1, &handle), 0);
    CHECK_EQ(solo_leave(nodes[0].solo, 0, "interrupted"), 0);
    CHECK_EQ(solo_wait(handle, 1000, &nodes[0].result), SOLO_ECLOSED);
    CHECK(submit(&nodes[0], 1, &handle) < 0 || solo_wait(handle, 1000, &nodes[0].result) < 0);
    CHECK_EQ(solo_over(nodes[0].solo), 0);
    solo_close(nodes[0].solo);
    solo_close(nodes[1].solo);
    close_master();
}

TEST(an_engine_that_nobody_answers_gives_up_with_words)
{
    struct solo_config config = {
        .size = sizeof config, .master_url = "tcp://127.0.0.1:1", .timeout_ms = 300};
    CHECK_EQ(solo_open(&config, &nodes[0].solo), 0);
    nodes[0].data[0] = nodes[0].weight;
    nodes[0].data[1] = &nodes[0].steps;
    attach(&nodes[0]);
    CHECK_EQ(nodes[0].rc, SOLO_ETIMEDOUT);
    CHECK(solo_error_text()[0]);
    solo_close(nodes[0].solo);
    solo_close(NULL);
}

TEST(what_is_wrong_with_a_configuration_is_told_at_once)
{
    struct solo *solo;
    struct solo_config config = {.size = sizeof config};
    CHECK_EQ(solo_open(&config, &solo), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "master_url");
    config.master_url = "tcp://127.0.0.1:1";
    config.outer = "adam";
    CHECK_EQ(solo_open(&config, &solo), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "adam");
    config.outer = NULL;
    config.codec = "gzip";
    CHECK_EQ(solo_open(&config, &solo), SOLO_EINVAL);
    CHECK_HAS(solo_error_text(), "gzip");
}

TEST(the_status_of_a_job_is_told_without_joining)
{
    open_master(1);
    open_node(0, "avg");
    attach_all(1);
    const uint64_t samples[] = {1};
    merge_all(1, samples);
    static struct solo_status status;
    status.size = sizeof status;
    CHECK_EQ(solo_status_get(url, "unit", NULL, 2000, &status), 0);
    CHECK_EQ(status.reach, SOLO_REACHED);
    CHECK_EQ(status.member_count, 1);
    CHECK_EQ(status.version, 1);
    CHECK_EQ(status.members[0].node_rank, 0);
    CHECK(status.members[0].live);
    CHECK(solo_status_get(url, "another", NULL, 2000, &status) < 0);
    CHECK_EQ(status.reach, SOLO_OTHER_JOB);
    CHECK(solo_status_get(url, "unit", "a token", 2000, &status) < 0);
    CHECK_EQ(status.reach, SOLO_BAD_TOKEN);
    CHECK(solo_status_get("tcp://127.0.0.1:1", "unit", NULL, 2000, &status) < 0);
    CHECK_EQ(status.reach, SOLO_CONN_REFUSED);
    close_all(1);
}

/* So a launcher can compare its own with them before Python starts. */
TEST(the_status_tells_the_arguments_that_the_master_was_given)
{
    master_config = (struct solo_master_config){
        .interval = "0:1,500:16", .outer = "auto", .codec = "int8", .versions = "torch=1"};
    open_master(1);
    static struct solo_status status;
    status.size = sizeof status;
    CHECK_EQ(solo_status_get(url, "unit", NULL, 2000, &status), 0);
    CHECK_STR(status.interval, "0:1,500:16");
    CHECK_STR(status.outer, "auto");
    CHECK_STR(status.codec, "int8");
    CHECK_STR(status.versions, "torch=1");
    close_master();
    char interval[200];
    memset(interval, '1', sizeof interval);
    interval[sizeof interval - 1] = 0;
    master_config = (struct solo_master_config){
        .size = sizeof master_config, .url = "tcp://127.0.0.1:0", .interval = interval};
    CHECK_EQ(solo_master_open(&master_config, &master), SOLO_ELIMIT);
    CHECK_HAS(solo_error_text(), "the sync interval");
    master_config = (struct solo_master_config){0};
}

TEST(the_memory_that_a_model_needs_is_told_before)
{
    struct solo_tensor model[] = {{"w", 1000000, SOLO_F32, SOLO_PARAM}};
    struct solo_config config = {.size = sizeof config, .outer = "avg"};
    uint64_t plain = solo_memory_needed(&config, model, 1);
    CHECK(plain >= 3 * 4000000 && plain < 4 * 4000000);
    config.outer = "nesterov";
    CHECK(solo_memory_needed(&config, model, 1) >= plain + 4000000);
}

/* The saver's thread tells the loop when it is through, until it has ended. */
static bool has_in_header(const char *path, uint64_t digest)
{
    char header[128];
    FILE *file = fopen(path, "r");
    CHECK(file);
    size_t count = fread(header, 1, sizeof header, file);
    fclose(file);
    return memmem(header, count, &digest, sizeof digest) != NULL;
}

TEST(closing_while_the_state_is_written_ends_well_and_keeps_the_last_version)
{
    char folder[64];
    snprintf(folder, sizeof folder, "%s/solo-engine-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder));
    state_dir = folder;
    for (uint64_t life = 0; life < 10; life++) {
        open_master(1);
        open_node(0, "avg");
        attach_all(1);
        CHECK_EQ(nodes[0].joined.version, 2 * life);
        merge_all(1, (const uint64_t[]){1});
        merge_all(1, (const uint64_t[]){1});
        CHECK(job_hash(&nodes[0].solo->job) == nodes[0].result.digest);
        close_all(1);
    }
    state_dir = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/unit-0.state", folder);
    CHECK(has_in_header(path, nodes[0].result.digest)); /* the saver was offered the anchor's own */
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rmdir(folder), 0); /* nothing else was left there */
}

static struct {
    struct loop *loop;
    struct conn *conn;
    bool lost;
} stranger;

static void on_open(void *context, struct conn *conn)
{
    (void)context;
    struct msg msg = {.type = FRAME_LINK};
    msg.as.link = (struct msg_link){
        .node_rank = 0,
        .stream = 1,
        .stream_count = 2,
        .instance = nodes[0].solo->member.config.identity.instance,
        .to_instance = nodes[1].solo->member.config.identity.instance,
    };
    uint8_t payload[LINK_GREETING_MAX];
    int size = msg_encode(&msg, payload, sizeof payload);
    CHECK(size > 0);
    struct frame frame = {.type = FRAME_LINK}; /* the number of a link before the first */
    CHECK_EQ(conn_send_copy(conn, &frame, payload, (size_t)size), 0);
}

static int on_frame(void *context, struct conn *conn, const struct frame *frame,
                    const void *payload)
{
    (void)context;
    (void)conn;
    (void)frame;
    (void)payload;
    return 0;
}

static void on_lost(void *context, struct conn *conn, int rc, const char *text)
{
    (void)context;
    (void)conn;
    (void)rc;
    (void)text;
    stranger.lost = true;
}

/* A stream of it that was slow to come up arrives when the link is another one. */
TEST(a_late_stream_of_a_replaced_link_does_not_end_the_one_that_stands)
{
    static const struct conn_calls calls = {.open = on_open, .frame = on_frame, .lost = on_lost};
    open_master(2);
    open_node(0, "avg");
    open_node(1, "avg");
    attach_all(2);
    const uint64_t samples[] = {1, 1};
    merge_all(2, samples);
    CHECK_EQ(loop_new(&stranger.loop), 0);
    struct solo_url door;
    CHECK_EQ(solo_url_parse(nodes[1].solo->member.config.identity.address, &door), 0);
    struct conn_config config = {
        .loop = stranger.loop, .job_id = "unit", .roles = 1u << HELLO_DATA, .calls = &calls};
    CHECK_EQ(conn_dial(&config, &door, &stranger.conn), 0);
    uint64_t deadline_us = clock_us() + 10000000;
    while (!stranger.lost) {
        CHECK(clock_us() < deadline_us);
        CHECK_EQ(loop_turn(stranger.loop, clock_us() + 50000), 0);
    }
    for (int i = 0; i < 3; i++) {
        merge_all(2, samples);
        CHECK_EQ(nodes[0].result.attempts, 1);
        CHECK_EQ(nodes[1].result.attempts, 1);
        CHECK_EQ(nodes[0].result.member_count, 2);
    }
    conn_free(stranger.conn);
    loop_free(stranger.loop);
    close_all(2);
}
