#include "check.h"
#include "wire/hello.h"

/* Not a secret's work, only another value for other bytes: the real HMAC is os/auth.c's. */
static void toy_hmac(const void *key, size_t key_size, const void *data, size_t size, uint8_t *out)
{
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < key_size; i++) {
        hash = (hash ^ ((const uint8_t *)key)[i]) * 1099511628211u;
    }
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    }
    for (size_t i = 0; i < 32; i++) {
        out[i] = (uint8_t)(hash >> (i % 8 * 8));
        hash = hash * 1099511628211u + i;
    }
}

static struct hello_config config(const char *token, const char *job, uint32_t roles, uint8_t seed)
{
    struct hello_config config = {.token = token, .job_id = job, .roles = roles, .hmac = toy_hmac};
    memset(config.nonce, seed, sizeof config.nonce);
    return config;
}

/* Moves what one side has to send, `piece` bytes at a time; the receiver's answer. */
static int move(struct hello *from, struct hello *to, size_t piece)
{
    size_t size;
    const uint8_t *bytes = hello_out(from, &size);
    int rc = 0;
    for (size_t at = 0; at < size && rc == 0;) {
        size_t want = hello_want(to);
        size_t count = size - at < piece ? size - at : piece;
        count = count < want ? count : want;
        CHECK(count > 0);
        rc = hello_feed(to, bytes + at, count);
        at += count;
    }
    hello_sent(from);
    return rc;
}

static void run(struct hello *client, struct hello *server, size_t piece)
{
    for (int turn = 0; turn < 4; turn++) {
        move(client, server, piece);
        move(server, client, piece);
    }
}

static struct hello client, server;

static void begin(const char *client_token, const char *server_token)
{
    struct hello_config c = config(client_token, "job", 1u << HELLO_CONTROL, 1);
    struct hello_config s =
        config(server_token, "job", 1u << HELLO_CONTROL | 1u << HELLO_STATUS, 2);
    hello_client(&client, &c);
    hello_server(&server, &s);
}

TEST(both_sides_agree_with_the_same_token_however_the_bytes_are_cut)
{
    for (size_t piece = 1; piece <= 80; piece++) {
        begin("secret", "secret");
        run(&client, &server, piece);
        CHECK(hello_over(&client) && hello_over(&server));
        CHECK_EQ(server.role, HELLO_CONTROL);
        CHECK_EQ(hello_want(&client), 0);
        CHECK_EQ(client.reach, SOLO_REACHED);
    }
}

TEST(both_sides_agree_without_a_token)
{
    begin(NULL, NULL);
    run(&client, &server, 80);
    CHECK(hello_over(&client) && hello_over(&server));
}

TEST(a_wrong_token_is_found_by_the_side_that_listens)
{
    begin("secret", "other");
    CHECK_EQ(move(&client, &server, 80), 0);
    CHECK_EQ(move(&server, &client, 80), 0);
    CHECK_EQ(move(&client, &server, 80), SOLO_EAUTH);
    CHECK_EQ(move(&server, &client, 80), SOLO_EAUTH); /* and it is told */
    CHECK_EQ(client.reach, SOLO_BAD_TOKEN);
    CHECK(!hello_over(&server) && !hello_over(&client));
}

static uint32_t hmac_calls;

static void counted_hmac(const void *key, size_t key_size, const void *data, size_t size,
                         uint8_t *out)
{
    hmac_calls++;
    toy_hmac(key, key_size, data, size, out);
}

/* Otherwise whoever can connect could try all short secrets against it, without us. */
TEST(a_stranger_is_given_nothing_that_was_made_from_the_token)
{
    struct hello_config c = config("guess", "job", 1u << HELLO_CONTROL, 1);
    struct hello_config s = config("secret", "job", 1u << HELLO_CONTROL, 2);
    s.hmac = counted_hmac;
    hello_client(&client, &c);
    hello_server(&server, &s);
    CHECK_EQ(move(&client, &server, 80), 0);
    CHECK_EQ(hmac_calls, 0);
    CHECK_EQ(move(&server, &client, 80), 0);
    CHECK_EQ(move(&client, &server, 80), SOLO_EAUTH);
    CHECK_EQ(server.out_size, HELLO_END_BYTES);
    for (uint32_t i = 1; i < HELLO_END_BYTES; i++) {
        CHECK_EQ(server.out[i], 0);
    }
}

TEST(a_wrong_proof_is_found_by_the_side_that_dialled)
{
    begin("secret", "secret");
    move(&client, &server, 80);
    move(&server, &client, 80);
    CHECK_EQ(move(&client, &server, 80), 0);
    CHECK(hello_over(&server));
    server.out[1] ^= 1;
    CHECK_EQ(move(&server, &client, 80), SOLO_EAUTH);
    CHECK_EQ(client.reach, SOLO_BAD_TOKEN);
}

TEST(a_proof_cannot_be_sent_back_to_its_maker)
{
    begin("secret", "secret");
    move(&client, &server, 80);
    move(&server, &client, 80);
    uint8_t end[HELLO_END_BYTES] = {0};
    memcpy(end + 1, client.out, HELLO_PROOF_BYTES);
    hello_sent(&client);
    CHECK_EQ(hello_feed(&client, end, sizeof end), SOLO_EAUTH);
}

TEST(a_missing_token_is_told_in_words)
{
    begin(NULL, "secret");
    CHECK_EQ(move(&client, &server, 80), SOLO_EAUTH);
    CHECK_EQ(move(&server, &client, 80), SOLO_EAUTH);
    CHECK_HAS(solo_error_text(), "asks for a token");
    begin("secret", NULL);
    move(&client, &server, 80);
    CHECK_EQ(move(&server, &client, 80), SOLO_EAUTH);
    CHECK_HAS(solo_error_text(), "the other has none");
}

TEST(another_wire_version_is_told_in_words_to_both)
{
    begin("secret", "secret");
    client.out[8]++;
    CHECK_EQ(move(&client, &server, 80), SOLO_EVERSION);
    CHECK_HAS(solo_error_text(), "wire version 4, this one 3");
    CHECK_EQ(move(&server, &client, 80), SOLO_EVERSION);
    CHECK_EQ(client.reach, SOLO_OTHER_WIRE);
}

TEST(another_job_is_refused)
{
    begin("secret", "secret");
    struct hello_config c = config("secret", "another", 1u << HELLO_CONTROL, 1);
    hello_client(&client, &c);
    CHECK_EQ(move(&client, &server, 80), SOLO_EREFUSED);
    CHECK_EQ(move(&server, &client, 80), SOLO_EREFUSED);
    CHECK_EQ(client.reach, SOLO_OTHER_JOB);
    CHECK_HAS(solo_error_text(), "the same --job_id");
}

TEST(a_role_that_is_not_taken_is_refused)
{
    begin("secret", "secret");
    struct hello_config c = config("secret", "job", 1u << HELLO_DATA, 1);
    hello_client(&client, &c);
    CHECK_EQ(move(&client, &server, 80), SOLO_EREFUSED);
    CHECK_EQ(move(&server, &client, 80), SOLO_EREFUSED);
}

TEST(a_wrong_first_byte_ends_it_at_once)
{
    begin("secret", "secret");
    CHECK_EQ(hello_feed(&server, "G", 1), SOLO_EPEER);
    CHECK_EQ(hello_want(&server), 0);
    begin("secret", "secret");
    uint8_t zeros[64] = {0};
    CHECK_EQ(hello_feed(&server, zeros, 1), SOLO_EPEER);
    begin("secret", "secret");
    CHECK_EQ(hello_feed(&client, "HTTP/1.1 400", 12), SOLO_EPEER);
    CHECK_EQ(client.reach, SOLO_NOT_SOLO);
}
