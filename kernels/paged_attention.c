/* Causal attention over a paged KV cache, prefill chunks and decodes alike.

   Keys and values of one KV head are laid out in tiles of TILE tokens; all query heads that share the KV head, of a few
   query tokens, are answered from a tile with a running softmax (Milakov and Gimelshein 2018). Tiles begin at fixed
   positions of the sequence, so a query token's answer depends neither on its neighbours nor on its chunk. */

#include "cpu_vectors.h"

#include "attention_tiles.h"

#define FEW_TOKENS 8
#define RUN 4 /* pieces that one thread answers one after another */

/* What is alike for all work of one call. */
typedef struct {
    const element *query, *key_cache, *value_cache;
    element *output;
    const int64_t *block_ids;
    int64_t heads, kv_heads, head_dim, block_size, block_stride, token_stride, query_stride, window;
    float scale, soft_cap;
    int64_t steps, vectors; /* of a head, in a tile */
} call;

/* Query tokens that are answered together. */
typedef struct {
    int64_t first_row, tokens, first_position, first_block;
} piece;

static __thread scratch memory;
static const element nothing[MOST_HEAD_DIM];

/* A token's place in a block table. */
typedef struct {
    int64_t entry, offset;
} cursor;

static cursor cursor_at(const call *c, const piece *p, int64_t token) {
    return (cursor){p->first_block + token / c->block_size, token % c->block_size};
}

/* Where a token's elements begin in either cache; the cursor goes on to the token after it. */
static inline int64_t advance(const call *c, cursor *token) {
    int64_t at = c->block_ids[token->entry] * c->block_stride + token->offset * c->token_stride;
    if (++token->offset == c->block_size)
        token->offset = 0, token->entry++;
    return at;
}

/* Memory of the next tile, asked for before it is needed: blocks lie scattered, so no processor foresees them. All at
   once would stop everything until it is there, so it is asked for bit by bit, between other work. */
typedef struct {
    const call *c;
    cursor token;
    int64_t left, at_once, first, bytes;
} foresight;

static void foresee(foresight *next, const call *c, const piece *p, int64_t first_head, int64_t heads, int64_t tile,
                    int64_t occasions) {
    const int64_t left = p->first_position + p->tokens - tile;
    next->c = c;
    next->token = cursor_at(c, p, tile);
    next->left = left < 0 ? 0 : left < TILE ? left : TILE;
    next->at_once = (next->left + occasions - 1) / occasions;
    next->first = first_head * c->head_dim;
    next->bytes = heads * c->head_dim * (int64_t)sizeof(element);
}

static void prefetch(foresight *next) {
    const call *c = next->c;
    for (int64_t i = 0; i < next->at_once && next->left > 0; i++, next->left--) {
        int64_t at = advance(c, &next->token) + next->first;
        for (int64_t byte = 0; byte < next->bytes; byte += 64) {
            __builtin_prefetch((const char *)(c->key_cache + at) + byte, 0, 2);
            __builtin_prefetch((const char *)(c->value_cache + at) + byte, 0, 2);
        }
    }
}

static void read_tile(const call *c, const piece *p, int64_t kv_head, int64_t first, int64_t tokens, scratch *s,
                      foresight *next) {
    cursor token = cursor_at(c, p, first);
    for (int64_t group = 0; group * LANES < tokens; group++) {
        const element *keys[LANES], *values[LANES];
        for (int64_t i = 0; i < LANES; i++) {
            keys[i] = values[i] = nothing; /* past the end, where the cache may hold anything */
            if (group * LANES + i >= tokens)
                continue;
            int64_t at = advance(c, &token) + kv_head * c->head_dim;
            keys[i] = c->key_cache + at;
            values[i] = c->value_cache + at;
        }
        read_keys(s->keys + group * c->steps, keys, c->head_dim);
        read_values(s->values + group * LANES / STEP * c->vectors, values, c->head_dim);
        prefetch(next);
    }
}

/* A running softmax's step: the row's best logit is now `highest`, so what it summed so far counts for less. */
static void rescale(const call *c, scratch *s, int64_t row, float highest) {
    float keep = s->best[row] == -INFINITY ? 0.0f : expf(s->best[row] - highest);
    s->total[row] *= keep;
    for (int64_t i = 0; i < c->vectors; i++)
        s->sums[row * c->vectors + i] *= keep;
    s->best[row] = highest;
}

static inline floats see(floats value, int64_t key, int64_t from, int64_t to, float otherwise) {
    const integers lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (from <= key && key + LANES <= to)
        return value;
    return choose((lanes >= (int32_t)(from - key)) & (lanes < (int32_t)(to - key)), value, splat(otherwise));
}

/* Logits of a row for the groups of 16 tokens that hold from..to. */
static void make_logits(const call *c, scratch *s, int64_t row, int64_t from, int64_t to) {
    const int32_t *query = s->queries + row * c->steps;
    int64_t group = from / LANES, end = (to + LANES - 1) / LANES;
    if (end - group == 4) {
        multiply_keys(query, s->keys, c->steps, s->weights, 4);
    } else {
        for (int64_t i = group; i < end; i++)
            multiply_keys(query, s->keys + i * c->steps, c->steps, s->weights + i, 1);
    }
    for (; group < end; group++) {
        floats logits = s->weights[group] * c->scale;
        if (c->soft_cap > 0)
            logits = hyperbolic_tangent(logits / c->soft_cap) * c->soft_cap;
        s->weights[group] = see(logits, group * LANES, from, to, -INFINITY);
    }
}

/* Add a tile to one row's answer; the row sees the tile's tokens from `from` up to and without `to`. */
static void add_tile(const call *c, scratch *s, int64_t row, int64_t from, int64_t to) {
    const int64_t first = from / LANES, end = (to + LANES - 1) / LANES;
    make_logits(c, s, row, from, to);
    floats best = s->weights[first], total = {0};
    for (int64_t group = first + 1; group < end; group++)
        best = larger_of(best, s->weights[group]);
    float highest = most_of(best);
    if (highest > s->best[row])
        rescale(c, s, row, highest);
    highest = s->best[row];
    for (int64_t group = first; group < end; group++) {
        floats weights = see(exponential(s->weights[group] - highest), group * LANES, from, to, 0.0f);
        total += weights;
        store_weights(s->weight_steps + group * LANES / STEP, weights);
    }
    s->total[row] += sum_of(total);
    const int64_t begin = first * LANES / STEP, until = end * LANES / STEP;
    floats *sums = s->sums + row * c->vectors;
    int64_t i = 0;
    for (; i + 4 <= c->vectors; i += 4)
        multiply_values(s->weight_steps, s->values + i, c->vectors, begin, until, sums + i, 4);
    for (; i < c->vectors; i++)
        multiply_values(s->weight_steps, s->values + i, c->vectors, begin, until, sums + i, 1);
}

/* Rows of a KV head: query tokens, and of each the heads that share it. Where such a row stands in a token: */
static inline int64_t place(const call *c, int64_t kv_head, int64_t row) {
    const int64_t shared = c->heads / c->kv_heads;
    return (kv_head * shared + row % shared) * c->head_dim;
}

static void begin_rows(const call *c, const piece *p, int64_t kv_head, int64_t first, int64_t rows, scratch *s) {
    for (int64_t i = 0; i < rows; i++) {
        const int64_t token = p->first_row + i / (c->heads / c->kv_heads), row = first + i;
        const element *query = c->query + token * c->query_stride + place(c, kv_head, i);
        for (int64_t step = 0; step < c->steps; step += LANES) {
            integers steps = load_steps(query, step * STEP, c->head_dim);
            memcpy(s->queries + row * c->steps + step, &steps, sizeof steps);
        }
        s->best[row] = -INFINITY;
        s->total[row] = 0;
    }
    memset(s->sums + first * c->vectors, 0, (size_t)(rows * c->vectors) * sizeof(floats));
}

static void end_rows(const call *c, const piece *p, int64_t kv_head, int64_t first, int64_t rows, scratch *s) {
    for (int64_t i = 0; i < rows; i++) {
        const int64_t token = p->first_row + i / (c->heads / c->kv_heads);
        element *output = c->output + token * c->heads * c->head_dim + place(c, kv_head, i);
        floats *sums = s->sums + (first + i) * c->vectors;
        sort_sums(sums, c->vectors);
        for (int64_t vector = 0; vector * LANES < c->head_dim; vector++)
            store(output + vector * LANES, sums[vector] / s->total[first + i]);
    }
}

/* Add a tile to the answers of one KV head's rows. */
static void add_rows(const call *c, const piece *p, int64_t first, int64_t rows, int64_t tile, scratch *s,
                     foresight *next) {
    const int64_t shared = c->heads / c->kv_heads;
    for (int64_t i = 0; i < rows; i++) {
        int64_t position = p->first_position + i / shared;
        int64_t from = c->window > 0 ? position - c->window + 1 - tile : 0, to = position + 1 - tile;
        from = from < 0 ? 0 : from;
        to = to > TILE ? TILE : to;
        if (from < to)
            add_tile(c, s, first + i, from, to);
        prefetch(next);
    }
}

static int64_t first_tile(const call *c, const piece *p) {
    const int64_t begin = c->window > 0 ? p->first_position - c->window + 1 : 0;
    return begin < 0 ? 0 : begin / TILE * TILE;
}

/* Answer a piece for some KV heads, which lie beside each other in the cache. `after`: the piece after it, if any. */
static void attend(const call *c, const piece *p, int64_t first_head, int64_t heads, const piece *after, scratch *s) {
    const int64_t rows = p->tokens * (c->heads / c->kv_heads), end = p->first_position + p->tokens;
    const int64_t occasions = heads * (TILE / LANES + rows);
    for (int64_t head = 0; head < heads; head++)
        begin_rows(c, p, first_head + head, head * rows, rows, s);
    for (int64_t tile = first_tile(c, p); tile < end; tile += TILE) {
        const piece *coming = tile + TILE < end || !after ? p : after;
        foresight next;
        foresee(&next, c, coming, first_head, heads, coming == p ? tile + TILE : first_tile(c, after), occasions);
        for (int64_t head = 0; head < heads; head++) {
            read_tile(c, p, first_head + head, tile, end - tile < TILE ? end - tile : TILE, s, &next);
            add_rows(c, p, head * rows, rows, tile, s, &next);
        }
    }
    for (int64_t head = 0; head < heads; head++)
        end_rows(c, p, first_head + head, head * rows, rows, s);
}

/* query: [tokens, heads, head_dim], tokens query_stride apart; output: [tokens, heads, head_dim].
   caches: [blocks, block_size, kv_heads, head_dim] by strides in elements.
   query_starts: [sequences + 1]; contexts: [sequences]; table_starts: [sequences] into block_ids.
   window, soft_cap: 0 for none. head_dim is a multiple of LANES and at most MOST_HEAD_DIM; at most 32 query heads share
   a KV head. */
void paged_attention(const element *query, const element *key_cache, const element *value_cache, element *output,
                        const int64_t *query_starts, const int64_t *contexts, const int64_t *table_starts,
                        const int64_t *block_ids, int64_t sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        int64_t block_size, int64_t block_stride, int64_t token_stride, int64_t query_stride,
                        int64_t window, float scale, float soft_cap) {
    if (sequences == 0)
        return;
    const int64_t steps = (head_dim + STEP * LANES - 1) / (STEP * LANES) * LANES;
    const call c = {query,        key_cache,    value_cache,  output, block_ids, heads,    kv_heads, head_dim, block_size,
                    block_stride, token_stride, query_stride, window, scale,     soft_cap, steps, steps * STEP / LANES};
    /* All KV heads at once, unless other threads would have nothing to do. */
    const int64_t shared = heads / kv_heads, fit = MOST_ROWS / shared < kv_heads ? MOST_ROWS / shared : kv_heads;
    const int64_t together = query_starts[sequences] >= FEW_TOKENS ? fit : 1, most = MOST_ROWS / (shared * together);
    int64_t count = 0;
    for (int64_t i = 0; i < sequences; i++)
        count += (query_starts[i + 1] - query_starts[i] + most - 1) / most;
    piece pieces[count]; /* a step has few thousand tokens, and so fewer pieces */
    count = 0;
    for (int64_t i = 0; i < sequences; i++) {
        int64_t first = contexts[i] - (query_starts[i + 1] - query_starts[i]);
        for (int64_t row = query_starts[i]; row < query_starts[i + 1]; row += most) {
            int64_t left = query_starts[i + 1] - row;
            piece one = {row, left < most ? left : most, first + row - query_starts[i], table_starts[i]};
            pieces[count++] = one;
        }
    }
    int64_t work = 0;
    for (int64_t i = 0; i < sequences; i++)
        work += (query_starts[i + 1] - query_starts[i]) * contexts[i] * heads * head_dim;
    const int64_t parts = (kv_heads + together - 1) / together, runs = (count + RUN - 1) / RUN;
#pragma omp parallel if (work > 65536) /* else another thread's help is not worth waking it for */
    {
        scratch *mine = &memory;
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t run = 0; run < runs; run++)
            for (int64_t part = 0; part < parts; part++)
                for (int64_t i = run * RUN; i < count && i < (run + 1) * RUN; i++) {
                    int64_t first = part * together, left = kv_heads - first, last = i + 1 == count || i % RUN == RUN - 1;
                    attend(&c, &pieces[i], first, left < together ? left : together, last ? NULL : &pieces[i + 1], mine);
                }
    }
}
