/* Intel's AMX for matrix products: tiles of 16 rows of 64 bytes, which is what a packed panel is made of.

   Two tiles of rows by two panels are summed at once. Linux lends tiles to processes that ask. All row counts take
   this path where any does, so a row's answer depends on no other row: AMX adds bfloat16 products in an order of its own. */

#if defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_BYTES 64
#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18              /* XFEATURE_XTILEDATA */

#define USES_TILES has_tiles

static int has_tiles = 0;

__attribute__((constructor)) static void request_tiles(void) {
    has_tiles = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* Tiles 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights. */
static void shape_tiles(int first_rows, int second_rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    const int rows[8] = {first_rows, first_rows, second_rows, second_rows, first_rows, second_rows, LANES, LANES};
    for (int tile = 0; tile < 8; tile++)
        if (rows[tile] > 0) {
            shape.bytes[tile] = TILE_BYTES;
            shape.rows[tile] = (uint8_t)rows[tile];
        }
    _tile_loadconfig(&shape);
}

#if defined(ELEMENT_IS_BFLOAT16)
#define MULTIPLY_TILES(sums, rows, weights)     \
    if (int8)                                   \
        _tile_dpbsud(sums, rows, weights);      \
    else                                        \
        _tile_dpbf16ps(sums, rows, weights)
#else
#define MULTIPLY_TILES(sums, rows, weights) _tile_dpbsud(sums, rows, weights)
#endif

INLINE void write_tile(const product *c, int64_t row, int64_t panel, int64_t rows, const float *sums, const int int8) {
    for (int64_t r = 0; r < rows; r++) {
        floats answer = load_floats(sums + r * LANES);
        write_sums(c, row + r, panel, int8 ? scale_sums(c, row + r, panel, (integers)answer) : answer);
    }
}

/* `rows` rows, shaped already, by one or two panels; `both`: more rows than a tile has. */
INLINE void tiles(const product *c, int64_t row, int64_t panel, int64_t rows, const int both, const int panels,
                  const int int8) {
    const int64_t bytes = c->inputs * (int8 ? 1 : (int64_t)sizeof(element)), pieces = bytes / TILE_BYTES;
    const char *x = (const char *)c->x + row * bytes, *next = x + LANES * bytes;
    const char *weight = (const char *)c->weight + panel * LANES * bytes, *beside = weight + LANES * bytes;
    _tile_zero(0);
    if (panels == 2)
        _tile_zero(1);
    if (both)
        _tile_zero(2);
    if (both && panels == 2)
        _tile_zero(3);
    for (int64_t piece = 0; piece < pieces; piece++) {
        _tile_loadd(6, weight + piece * LANES * TILE_BYTES, TILE_BYTES);
        _tile_loadd(4, x + piece * TILE_BYTES, bytes);
        MULTIPLY_TILES(0, 4, 6);
        if (panels == 2) {
            _tile_loadd(7, beside + piece * LANES * TILE_BYTES, TILE_BYTES);
            MULTIPLY_TILES(1, 4, 7);
        }
        if (both) {
            _tile_loadd(5, next + piece * TILE_BYTES, bytes);
            MULTIPLY_TILES(2, 5, 6);
            if (panels == 2) {
                MULTIPLY_TILES(3, 5, 7);
            }
        }
    }
    float sums[4][LANES * LANES] __attribute__((aligned(64)));
    _tile_stored(0, sums[0], TILE_BYTES);
    if (panels == 2)
        _tile_stored(1, sums[1], TILE_BYTES);
    if (both)
        _tile_stored(2, sums[2], TILE_BYTES);
    if (both && panels == 2)
        _tile_stored(3, sums[3], TILE_BYTES);
    for (int half = 0; half <= both; half++)
        for (int p = 0; p < panels; p++)
            write_tile(c, row + half * LANES, panel + p, half < both ? LANES : rows - half * LANES,
                       sums[2 * half + p], int8);
}

INLINE void multiply_tiles(const product *c, const int int8) {
    const int64_t panels = (c->outputs + LANES - 1) / LANES, pairs = (panels + 1) / 2;
    const int64_t chunks = (c->rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
#pragma omp parallel if (is_large(c))
    {
        int64_t shaped = 0;
#pragma omp for collapse(2) schedule(dynamic, 4) nowait
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int64_t pair = 0; pair < pairs; pair++) {
                int64_t row = chunk * CHUNK_ROWS, end = row + CHUNK_ROWS < c->rows ? row + CHUNK_ROWS : c->rows;
                for (; row < end; row += 2 * LANES) {
                    int64_t rows = end - row < 2 * LANES ? end - row : 2 * LANES;
                    int both = rows > LANES, two = 2 * pair + 1 < panels;
                    if (shaped != rows)
                        shape_tiles(both ? LANES : (int)rows, both ? (int)rows - LANES : 0);
                    shaped = rows;
                    if (both && two)
                        tiles(c, row, 2 * pair, rows, 1, 2, int8);
                    else if (both)
                        tiles(c, row, 2 * pair, rows, 1, 1, int8);
                    else if (two)
                        tiles(c, row, 2 * pair, rows, 0, 2, int8);
                    else
                        tiles(c, row, 2 * pair, rows, 0, 1, int8);
                }
            }
        if (shaped)
            _tile_release();
    }
}

/* Whether a product's rows are made of whole tiles, and elements are of a kind that is multiplied so. */
static inline int fits_tiles(const product *c, int int8) {
    return has_tiles && (int8 || sizeof(element) == 2) && c->inputs * (int8 ? 1 : 2) % TILE_BYTES == 0;
}
#else
#define USES_TILES 0

INLINE int fits_tiles(const product *c, int int8) {
    (void)c, (void)int8;
    return 0;
}

INLINE void multiply_tiles(const product *c, const int int8) { (void)c, (void)int8; }
#endif
