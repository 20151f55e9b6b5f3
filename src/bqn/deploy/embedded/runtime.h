/*@ popcount */
static int32_t net_popcount(uint32_t word) {
#if defined(__POPCNT__) || defined(__aarch64__)
    return (int32_t)__builtin_popcount((unsigned int)word); /* one instruction */
#else
    word -= word >> 1 & 0x55555555u;
    word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0fu;
    return (int32_t)(word * 0x01010101u >> 24);
#endif
}

/*@ value */
/* One value of the network: small codes or integers. Exactly one pointer is set, and says how it is stored.
   A code k stands for the integer low + step * k; it is formed without signs, where nothing overflows. */
typedef struct {
    const uint8_t *pixels; /* codes that the caller holds: [channel][pixel] */
    uint32_t *words;       /* bit-planes: [pixel][plane][word], channel c is bit c % 32 of word c / 32 */
    uint8_t *bytes;        /* codes: [channel][pixel] */
    int32_t *integers;     /* [channel][pixel] */
    int32_t rows, columns;
    int32_t planes, width; /* of words: planes, and words a plane */
    int32_t low, step;
} net_value;

/*@ integer: value */
static int32_t net_integer(const net_value *x, int32_t channel, int32_t pixel) {
    const int32_t place = channel * x->rows * x->columns + pixel;
    int32_t code = 0;
    if (x->integers) return x->integers[place];
    if (x->words) {
        const uint32_t *word = x->words + pixel * x->planes * x->width + channel / 32;
        for (int32_t plane = 0; plane < x->planes; ++plane)
            code |= (int32_t)(word[plane * x->width] >> channel % 32 & 1u) << plane;
    } else {
        code = x->pixels ? x->pixels[place] : x->bytes[place];
    }
    return (int32_t)((uint32_t)x->low + (uint32_t)x->step * (uint32_t)code);
}

/*@ code: integer */
static int32_t net_code(const net_value *x, int32_t channel, int32_t pixel) {
    return (int32_t)(((uint32_t)net_integer(x, channel, pixel) - (uint32_t)x->low) / (uint32_t)x->step);
}

/*@ put: value */
static void net_put(const net_value *y, int32_t channel, int32_t pixel, int32_t code) {
    const int32_t place = channel * y->rows * y->columns + pixel;
    if (y->integers) {
        y->integers[place] = (int32_t)((uint32_t)y->low + (uint32_t)y->step * (uint32_t)code);
    } else if (y->words) {
        uint32_t *word = y->words + pixel * y->planes * y->width + channel / 32;
        const uint32_t bit = (uint32_t)1 << channel % 32;
        for (int32_t plane = 0; plane < y->planes; ++plane) {
            uint32_t *target = word + plane * y->width;
            *target = code >> plane & 1 ? *target | bit : *target & ~bit;
        }
    } else {
        y->bytes[place] = (uint8_t)code;
    }
}

/*@ set: put */
static void net_set(const net_value *y, int32_t channel, int32_t pixel, int32_t integer) {
    if (y->integers)
        y->integers[channel * y->rows * y->columns + pixel] = integer;
    else
        net_put(y, channel, pixel, (int32_t)(((uint32_t)integer - (uint32_t)y->low) / (uint32_t)y->step));
}

/*@ clear: value */
/* Bits behind the last channel must be zero: products count them. */
static void net_clear(const net_value *y) {
    const int32_t count = y->rows * y->columns * y->planes * y->width;
    for (int32_t i = 0; i < count; ++i) y->words[i] = 0;
}

/*@ product */
/* A linear layer or a convolution. A weight of code k is low + step * k. */
typedef struct {
    int32_t inputs, outputs; /* channels of a group */
    int32_t kernel[2], stride[2], padding[2], dilation[2];
    int32_t planes, width; /* of the weights: bit-planes, and words a plane of one output or of one tap */
    int32_t low, step;
} net_product;

/*@ windows: integer product */
/* The integers of one group under the window, [tap][channel], zeros where it is over the border; their sum. */
static int32_t net_gather(const net_value *x, const net_product *p, int32_t group, const int32_t at[2],
                          int32_t *window) {
    int32_t sum = 0;
    for (int32_t i = 0; i < p->kernel[0]; ++i) {
        const int32_t row = at[0] * p->stride[0] + i * p->dilation[0] - p->padding[0];
        for (int32_t j = 0; j < p->kernel[1]; ++j) {
            const int32_t column = at[1] * p->stride[1] + j * p->dilation[1] - p->padding[1];
            const int inside = row >= 0 && row < x->rows && column >= 0 && column < x->columns;
            for (int32_t c = 0; c < p->inputs; ++c, ++window) {
                *window = inside ? net_integer(x, group * p->inputs + c, row * x->columns + column) : 0;
                sum += *window;
            }
        }
    }
    return sum;
}

static int32_t net_weigh(const int32_t *window, const uint32_t *weights, const net_product *p) {
    int32_t total = 0;
    for (int32_t plane = 0; plane < p->planes; ++plane) {
        int32_t sum = 0;
        for (int32_t i = 0; i < p->width; ++i) {
            const int32_t *value = window + 32 * i;
            for (uint32_t bits = *weights++; bits; bits >>= 1) sum += *value++ & -(int32_t)(bits & 1u);
        }
        total += sum * ((int32_t)1 << plane);
    }
    return total;
}

/* Outputs first to first + count - 1 of a product, to channels of y from y0 on: windows of integers, bits of weights. */
static void net_windows(const net_value *x, const net_value *y, int32_t y0, const net_product *p,
                        const uint32_t *weights, const int32_t *bias, int32_t first, int32_t count, int32_t *window) {
    for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel) {
        const int32_t at[2] = {pixel / y->columns, pixel % y->columns};
        int32_t group = -1, sum = 0;
        for (int32_t o = first; o < first + count; ++o) {
            if (o / p->outputs != group) {
                group = o / p->outputs;
                sum = net_gather(x, p, group, at, window);
            }
            y->integers[(y0 + o - first) * y->rows * y->columns + pixel] =
                (bias ? bias[o] : 0) + p->low * sum +
                p->step * net_weigh(window, weights + o * p->planes * p->width, p);
        }
    }
}

/*@ taps: value product */
/* The place in x of one tap of a window, or -1 over the border. */
static int32_t net_tap(const net_value *x, const net_product *p, const int32_t at[2], int32_t i, int32_t j) {
    const int32_t row = at[0] * p->stride[0] + i * p->dilation[0] - p->padding[0];
    const int32_t column = at[1] * p->stride[1] + j * p->dilation[1] - p->padding[1];
    if (row < 0 || row >= x->rows || column < 0 || column >= x->columns) return -1;
    return row * x->columns + column;
}

/*@ xor: popcount taps */
/* Bits that differ under one tap, each counted by the worth of its planes. */
static int32_t net_unlike(const net_value *x, const net_product *p, int32_t place, const uint32_t *filter) {
    const uint32_t *bits = x->words + place * x->planes * x->width;
    int32_t total = 0;
    for (int32_t a = 0; a < x->planes; ++a, bits += x->width)
        for (int32_t b = 0; b < p->planes; ++b) {
            int32_t count = 0;
            for (int32_t i = 0; i < p->width; ++i) count += net_popcount(bits[i] ^ filter[b * p->width + i]);
            total += count * ((int32_t)1 << (a + b));
        }
    return total;
}

/* Like net_windows for bit-planes that are signs, all of them: by xor. */
static void net_xor(const net_value *x, const net_value *y, int32_t y0, const net_product *p, const uint32_t *weights,
                    const int32_t *bias, int32_t first, int32_t count) {
    const int32_t taps = p->kernel[0] * p->kernel[1], scale = x->step * p->step / 4;
    const int32_t all = (((int32_t)1 << x->planes) - 1) * (((int32_t)1 << p->planes) - 1) * p->inputs;
    for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel) {
        const int32_t at[2] = {pixel / y->columns, pixel % y->columns};
        const uint32_t *filter = weights + first * taps * p->planes * p->width;
        for (int32_t o = first; o < first + count; ++o) {
            int32_t sum = 0;
            for (int32_t i = 0; i < p->kernel[0]; ++i)
                for (int32_t j = 0; j < p->kernel[1]; ++j, filter += p->planes * p->width) {
                    const int32_t place = net_tap(x, p, at, i, j);
                    if (place < 0) continue;
                    sum += all - 2 * net_unlike(x, p, place, filter);
                }
            y->integers[(y0 + o - first) * y->rows * y->columns + pixel] = (bias ? bias[o] : 0) + scale * sum;
        }
    }
}

/*@ and: popcount taps */
/* Sum of the codes in bit-planes. */
static int32_t net_total(const uint32_t *bits, int32_t planes, int32_t width) {
    int32_t total = 0;
    for (int32_t plane = 0; plane < planes; ++plane)
        for (int32_t i = 0; i < width; ++i) total += net_popcount(*bits++) * ((int32_t)1 << plane);
    return total;
}

/* Sum of the products of codes under one tap. */
static int32_t net_common(const net_value *x, const net_product *p, int32_t place, const uint32_t *filter) {
    const uint32_t *bits = x->words + place * x->planes * x->width;
    int32_t total = 0;
    for (int32_t a = 0; a < x->planes; ++a, bits += x->width)
        for (int32_t b = 0; b < p->planes; ++b) {
            int32_t count = 0;
            for (int32_t i = 0; i < p->width; ++i) count += net_popcount(bits[i] & filter[b * p->width + i]);
            total += count * ((int32_t)1 << (a + b));
        }
    return total;
}

/* Like net_windows for bit-planes of any codes: with x = a + bX and w = c + dW for codes X and W, a sum of products is
   n a c + a d sum W + c b sum X + b d sum XW. */
static void net_and(const net_value *x, const net_value *y, int32_t y0, const net_product *p, const uint32_t *weights,
                    const int32_t *bias, int32_t first, int32_t count) {
    const int32_t taps = p->kernel[0] * p->kernel[1];
    for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel) {
        const int32_t at[2] = {pixel / y->columns, pixel % y->columns};
        const uint32_t *filter = weights + first * taps * p->planes * p->width;
        int32_t inputs = 0, inside = 0;
        for (int32_t i = 0; i < p->kernel[0]; ++i)
            for (int32_t j = 0; j < p->kernel[1]; ++j) {
                const int32_t place = net_tap(x, p, at, i, j);
                if (place < 0) continue;
                inputs += net_total(x->words + place * x->planes * x->width, x->planes, x->width);
                inside += p->inputs;
            }
        for (int32_t o = first; o < first + count; ++o) {
            int32_t both = 0, own = 0;
            for (int32_t i = 0; i < p->kernel[0]; ++i)
                for (int32_t j = 0; j < p->kernel[1]; ++j, filter += p->planes * p->width) {
                    const int32_t place = net_tap(x, p, at, i, j);
                    if (place < 0) continue;
                    if (x->low) own += net_total(filter, p->planes, p->width);
                    both += net_common(x, p, place, filter);
                }
            y->integers[(y0 + o - first) * y->rows * y->columns + pixel] =
                (bias ? bias[o] : 0) + p->low * (inside * x->low + x->step * inputs) +
                p->step * (x->low * own + x->step * both);
        }
    }
}

/*@ pool */
typedef struct {
    int32_t kernel[2], stride[2], padding[2];
} net_pool;

/*@ sum_pool: integer set pool */
/* Sums over windows of `count` channels, from x0 on in x and from y0 on in y. */
static void net_sum_pool(const net_value *x, int32_t x0, const net_value *y, int32_t y0, const net_pool *p,
                         int32_t count) {
    for (int32_t c = 0; c < count; ++c)
        for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel) {
            int32_t sum = 0;
            for (int32_t i = 0; i < p->kernel[0]; ++i)
                for (int32_t j = 0; j < p->kernel[1]; ++j) {
                    const int32_t row = pixel / y->columns * p->stride[0] + i - p->padding[0];
                    const int32_t column = pixel % y->columns * p->stride[1] + j - p->padding[1];
                    if (row >= 0 && row < x->rows && column >= 0 && column < x->columns)
                        sum += net_integer(x, x0 + c, row * x->columns + column);
                }
            net_set(y, y0 + c, pixel, sum);
        }
}

/*@ max_pool: integer set pool */
/* Maxima over windows; what is over the border never wins. */
static void net_max_pool(const net_value *x, int32_t x0, const net_value *y, int32_t y0, const net_pool *p,
                         int32_t count) {
    for (int32_t c = 0; c < count; ++c)
        for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel) {
            int32_t most = INT32_MIN;
            for (int32_t i = 0; i < p->kernel[0]; ++i)
                for (int32_t j = 0; j < p->kernel[1]; ++j) {
                    const int32_t row = pixel / y->columns * p->stride[0] + i - p->padding[0];
                    const int32_t column = pixel % y->columns * p->stride[1] + j - p->padding[1];
                    if (row >= 0 && row < x->rows && column >= 0 && column < x->columns) {
                        const int32_t own = net_integer(x, x0 + c, row * x->columns + column);
                        if (own > most) most = own;
                    }
                }
            net_set(y, y0 + c, pixel, most);
        }
}

/*@ add: integer set */
static void net_add(const net_value *a, const net_value *b, const net_value *y, int32_t y0, int32_t factor_a,
                    int32_t factor_b, int32_t first, int32_t count) {
    for (int32_t c = 0; c < count; ++c)
        for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel)
            net_set(y, y0 + c, pixel,
                    (int32_t)((int64_t)factor_a * net_integer(a, first + c, pixel) +
                              (int64_t)factor_b * net_integer(b, first + c, pixel)));
}

/*@ copy: integer set */
/* The same integers, stored in another way. */
static void net_copy(const net_value *x, int32_t x0, const net_value *y, int32_t y0, int32_t count) {
    for (int32_t c = 0; c < count; ++c)
        for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel)
            net_set(y, y0 + c, pixel, net_integer(x, x0 + c, pixel));
}

/*@ flatten: integer set */
/* An image as a vector: channel, row, column. */
static void net_flatten(const net_value *x, const net_value *y, int32_t channels) {
    const int32_t pixels = x->rows * x->columns;
    for (int32_t c = 0; c < channels; ++c)
        for (int32_t pixel = 0; pixel < pixels; ++pixel)
            net_set(y, c * pixels + pixel, 0, net_integer(x, c, pixel));
}

/*@ threshold_TYPE: integer code put */
/* How many thresholds each integer reaches, or its negative where a channel flips: thresholds [case][level][channel],
   of which `all` are the channels of the layer and the block begins with `first`. */
static void net_threshold_TYPE(const net_value *x, int32_t x0, const net_value *y, int32_t y0, const TYPE *thresholds,
                               const uint8_t *flips, const net_value *selector, int32_t levels, int32_t all,
                               int32_t first, int32_t count) {
    for (int32_t c = 0; c < count; ++c)
        for (int32_t pixel = 0; pixel < y->rows * y->columns; ++pixel) {
            const int32_t channel = first + c, plain = net_integer(x, x0 + c, pixel);
            const int32_t integer = flips[channel / 8] >> channel % 8 & 1 ? -plain : plain;
            const int32_t which = selector ? net_code(selector, channel, pixel) : 0;
            const TYPE *level = thresholds + which * levels * all + channel;
            int32_t code = 0;
            while (code < levels && integer >= level[code * all]) ++code;
            net_put(y, y0 + c, pixel, code);
        }
}

/*@ features */
/* Real numbers as multiples of 2^-24, halves to even; -1 if one of them is no number or too large. */
static int net_features(const float *given, const float *mean, const float *deviation, int64_t *x, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
        const float own = mean ? (given[i] - mean[i]) / deviation[i] : given[i];
        if (!(own > -4096.0f && own < 4096.0f)) return -1;
        const double exact = (double)own * 16777216.0;
        int64_t whole = (int64_t)exact;
        const double rest = exact - (double)whole;
        if (rest > 0.5 || (rest == 0.5 && whole % 2 != 0)) ++whole;
        if (rest < -0.5 || (rest == -0.5 && whole % 2 != 0)) --whole;
        x[i] = whole;
    }
    return 0;
}

/*@ wide_linear: product */
static void net_wide_linear(const int64_t *x, int64_t *y, const net_product *p, const uint32_t *weights,
                            const int64_t *bias) {
    for (int32_t o = 0; o < p->outputs; ++o) {
        int64_t plain = 0, total = 0;
        for (int32_t i = 0; i < p->inputs; ++i) plain += x[i];
        for (int32_t plane = 0; plane < p->planes; ++plane, weights += p->width) {
            int64_t sum = 0;
            for (int32_t i = 0; i < p->inputs; ++i)
                if (weights[i / 32] >> i % 32 & 1u) sum += x[i];
            total += sum * ((int64_t)1 << plane);
        }
        y[o] = (bias ? bias[o] : 0) + p->low * plain + p->step * total;
    }
}

/*@ wide_threshold: code put */
static void net_wide_threshold(const int64_t *x, const net_value *y, const int64_t *thresholds, const uint8_t *flips,
                               const net_value *selector, int32_t levels, int32_t all) {
    const int32_t pixels = y->rows * y->columns;
    for (int32_t c = 0; c < all; ++c)
        for (int32_t pixel = 0; pixel < pixels; ++pixel) {
            const int64_t integer = flips[c / 8] >> c % 8 & 1 ? -x[c * pixels + pixel] : x[c * pixels + pixel];
            const int32_t which = selector ? net_code(selector, c, pixel) : 0;
            const int64_t *level = thresholds + which * levels * all + c;
            int32_t code = 0;
            while (code < levels && integer >= level[code * all]) ++code;
            net_put(y, c, pixel, code);
        }
}
