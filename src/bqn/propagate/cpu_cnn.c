/* Passes of a convolutional network that torch would make one by one, or slowly in bfloat16.
 *
 * All functions are plain C on dense memory; `propagate/cpu_cnn.py` calls them, and holds the formulas' meaning. Numbers in
 * bfloat16 are widened when they are read, and rounded once when they are written.
 */
#include "cpu_math.h"

static INLINE inline void round_all(const float *x, float scale, uint16_t *out, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        out[i] = rounded(x[i] * scale);
}

/* Means over windows of images (outer, height, width, inner) in memory; `row` holds two rows of width * inner numbers. */
EXPORT CLONES void bqn_window_means(const uint16_t *x, uint16_t *out, float *row, int64_t outer, int64_t height, int64_t width,
                                    int64_t inner, int64_t tall, int64_t wide, int64_t down, int64_t right)
{
    int64_t rows = (height - tall) / down + 1, columns = (width - wide) / right + 1, length = width * inner;
    int64_t span = (width - wide + 1) * inner;
    float *sums = row + length;
    float each = 1.0f / (float)(tall * wide);
    for (int64_t n = 0; n < outer; n++, x += height * length) {
        for (int64_t y = 0; y < rows; y++, out += columns * inner) {
            const uint16_t *from = x + y * down * length;
#pragma omp simd
            for (int64_t i = 0; i < length; i++)
                row[i] = widened(from[i]);
            for (int64_t k = 1; k < tall; k++)
#pragma omp simd
                for (int64_t i = 0; i < length; i++)
                    row[i] += widened(from[k * length + i]);
            for (int64_t k = 1; k < wide; k++)
#pragma omp simd
                for (int64_t i = 0; i < span; i++)
                    sums[i] = (k == 1 ? row[i] : sums[i]) + row[i + k * inner];
            const float *whole = wide == 1 ? row : sums;
            if (right == 1)
                round_all(whole, each, out, span);
            else if (inner == 1)
#pragma omp simd
                for (int64_t c = 0; c < columns; c++)
                    out[c] = rounded(whole[c * right] * each);
            else
                for (int64_t c = 0; c < columns; c++)
                    round_all(whole + c * right * inner, each, out + c * inner, inner);
        }
    }
}

/* The gradient of such means by an image with `top` and `left` zeros around it, (outer, height, width, inner) in memory, from
 * that by the means, (outer, rows, columns, inner). `image` holds one image in float32 and a row of it. */
EXPORT CLONES void bqn_window_means_backward(const uint16_t *grad, uint16_t *out, float *image, int64_t outer, int64_t height,
                                             int64_t width, int64_t inner, int64_t tall, int64_t wide, int64_t down,
                                             int64_t right, int64_t top, int64_t left)
{
    int64_t rows = (height + 2 * top - tall) / down + 1, columns = (width + 2 * left - wide) / right + 1;
    int64_t length = width * inner;
    float each = 1.0f / (float)(tall * wide), *row = image + height * length;
    for (int64_t n = 0; n < outer; n++, out += height * length) {
        memset(image, 0, (size_t)(height * length) * sizeof *image);
        for (int64_t y = 0; y < rows; y++) {
            memset(row, 0, (size_t)length * sizeof *row);
            for (int64_t c = 0; c < columns; c++, grad += inner) {
                int64_t begin = c * right - left, end = begin + wide;
                for (int64_t x = begin < 0 ? 0 : begin; x < end && x < width; x++)
#pragma omp simd
                    for (int64_t i = 0; i < inner; i++)
                        row[x * inner + i] += widened(grad[i]);
            }
            int64_t begin = y * down - top, end = begin + tall;
            for (int64_t k = begin < 0 ? 0 : begin; k < end && k < height; k++)
#pragma omp simd
                for (int64_t i = 0; i < length; i++)
                    image[k * length + i] += row[i];
        }
        round_all(image, each, out, height * length);
    }
}

/* What reaches sums, in bfloat16 or in float32. */
static INLINE inline float read_at(const void *numbers, int low, int64_t i)
{
    return low ? widened(((const uint16_t *)numbers)[i]) : ((const float *)numbers)[i];
}

static INLINE inline void write_at(void *numbers, int low, int64_t i, float x)
{
    if (low)
        ((uint16_t *)numbers)[i] = rounded(x);
    else
        ((float *)numbers)[i] = x;
}

/* The variance of an input and what it shares with those beside it, laid out so that inputs are one row. */
static INLINE inline void spread_levels(const float *level, float *row, int64_t channels, int64_t places)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t p = 0; p < places; p++)
            row[c * places + p] = level[c];
}

static INLINE inline void noise_reaching(const void *reaching, int low, const float *var, const float *beside, const float *level,
                                         float *row, float *out, int64_t rows, int64_t outputs, int64_t channels, int64_t places)
{
    int64_t inputs = channels * places, at = 0;
    for (int64_t n = 0; n < rows; n++, var += inputs) {
        if (beside)
            spread_levels(level + n * channels, row, channels, places);
        for (int64_t k = 0; k < outputs; k++, at += inputs) {
            float sum = 0.0f;
            if (beside) {
#pragma omp simd reduction(+ : sum)
                for (int64_t i = 0; i < inputs; i++) {
                    float r = read_at(reaching, low, at + i);
                    sum += r * (var[i] * r + row[i] * beside[at + i]);
                }
            } else {
#pragma omp simd reduction(+ : sum)
                for (int64_t i = 0; i < inputs; i++) {
                    float r = read_at(reaching, low, at + i);
                    sum += r * r * var[i];
                }
            }
            *out++ = sum;
        }
    }
}

/* Σ_k r_k (ν_k r_k + ν̄ b_k) for each example and output: r `(rows, outputs, inputs)` is what reaches a sum, ν `(rows, inputs)`
 * the variances, ν̄ their means by channel and b what stands beside each place; the last two may be missing. */
EXPORT CLONES void bqn_noise_reaching(const void *reaching, int64_t low, const float *var, const float *beside,
                                      const float *level, float *row, float *out, int64_t rows, int64_t outputs,
                                      int64_t channels, int64_t places)
{
    if (low)
        noise_reaching(reaching, 1, var, beside, level, row, out, rows, outputs, channels, places);
    else
        noise_reaching(reaching, 0, var, beside, level, row, out, rows, outputs, channels, places);
}

static INLINE inline void noise_reaching_backward(const float *grad, const void *reaching, int low, const float *var,
                                                  const float *beside, const float *level, float *row, void *by_reaching,
                                                  float *by_var, float *by_level, int64_t rows, int64_t outputs,
                                                  int64_t channels, int64_t places)
{
    int64_t inputs = channels * places, at = 0;
    float *pairs = row + inputs;
    for (int64_t n = 0; n < rows; n++, var += inputs, by_var += inputs) {
        memset(by_var, 0, (size_t)inputs * sizeof *by_var);
        if (beside) {
            spread_levels(level + n * channels, row, channels, places);
            memset(pairs, 0, (size_t)inputs * sizeof *pairs);
        }
        for (int64_t k = 0; k < outputs; k++, at += inputs) {
            float g = *grad++, twice = 2.0f * g;
            if (beside) {
#pragma omp simd
                for (int64_t i = 0; i < inputs; i++) {
                    float r = read_at(reaching, low, at + i), b = beside[at + i];
                    by_var[i] += g * r * r;
                    pairs[i] += g * r * b;
                    write_at(by_reaching, low, at + i, twice * (var[i] * r + row[i] * b));
                }
            } else {
#pragma omp simd
                for (int64_t i = 0; i < inputs; i++) {
                    float r = read_at(reaching, low, at + i);
                    by_var[i] += g * r * r;
                    write_at(by_reaching, low, at + i, twice * var[i] * r);
                }
            }
        }
        if (beside)
            for (int64_t c = 0; c < channels; c++) {
                float sum = 0.0f;
                for (int64_t p = 0; p < places; p++)
                    sum += pairs[c * places + p];
                *by_level++ = sum;
            }
    }
}

/* Its gradients by r, as r is, and by ν and ν̄. `row` holds two rows of inputs. */
EXPORT CLONES void bqn_noise_reaching_backward(const float *grad, const void *reaching, int64_t low, const float *var,
                                               const float *beside, const float *level, float *row, void *by_reaching,
                                               float *by_var, float *by_level, int64_t rows, int64_t outputs,
                                               int64_t channels, int64_t places)
{
    if (low)
        noise_reaching_backward(grad, reaching, 1, var, beside, level, row, by_reaching, by_var, by_level, rows, outputs,
                                channels, places);
    else
        noise_reaching_backward(grad, reaching, 0, var, beside, level, row, by_reaching, by_var, by_level, rows, outputs,
                                channels, places);
}

static INLINE inline void through_square(const void *linear, const void *square, int low, float factor, const float *at,
                                         float *out, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        out[i] = read_at(linear, low, i) + factor * at[i] * read_at(square, low, i);
}

/* A gradient by some numbers from the one by these themselves and the one by their squares times half the factor. */
EXPORT CLONES void bqn_through_square(const void *linear, const void *square, int64_t low, float factor, const float *at,
                                      float *out, int64_t count)
{
    if (low)
        through_square(linear, square, 1, factor, at, out, count);
    else
        through_square(linear, square, 0, factor, at, out, count);
}

#define WIDE 16 /* numbers of a block; a matrix of pairs has rows of whole blocks, zeros at the end */

/* What stands beside each place of one channel: `x @ near`. The sums stay in registers, which plain loops over an array of a
 * fixed size allow. */
static INLINE inline void beside_of(const void *x, int low, int64_t at, const float *near, int64_t places, int blocks, float *out)
{
    float sums[4 * WIDE];
    for (int j = 0; j < blocks * WIDE; j++)
        sums[j] = 0.0f;
    for (int64_t p = 0; p < places; p++, near += blocks * WIDE) {
        float each = read_at(x, low, at + p);
        for (int j = 0; j < blocks * WIDE; j++)
            sums[j] += each * near[j];
    }
    memcpy(out, sums, (size_t)(blocks * WIDE) * sizeof *out);
}

static INLINE inline void beside_all(const void *x, int low, const float *near, const float *scale, float *out, int64_t rows,
                                     int64_t places, int blocks)
{
    float sums[4 * WIDE];
    for (int64_t n = 0; n < rows; n++, out += places) {
        float by = scale ? scale[n] : 1.0f;
        beside_of(x, low, n * places, near, places, blocks, sums);
#pragma omp simd
        for (int64_t p = 0; p < places; p++)
            out[p] = by * sums[p];
    }
}

static INLINE inline void beside_by_width(const void *x, int low, const float *near, const float *scale, float *out, int64_t rows,
                                          int64_t places)
{
    if (places <= WIDE)
        beside_all(x, low, near, scale, out, rows, places, 1);
    else if (places <= 2 * WIDE)
        beside_all(x, low, near, scale, out, rows, places, 2);
    else if (places <= 3 * WIDE)
        beside_all(x, low, near, scale, out, rows, places, 3);
    else
        beside_all(x, low, near, scale, out, rows, places, 4);
}

/* `x @ near`, each row times its scale if there is one: x `(rows, places)` in bfloat16 or float32, of up to 64 places. */
EXPORT CLONES void bqn_beside(const void *x, int64_t low, const float *near, const float *scale, float *out, int64_t rows,
                              int64_t places)
{
    if (low)
        beside_by_width(x, 1, near, scale, out, rows, places);
    else
        beside_by_width(x, 0, near, scale, out, rows, places);
}

static INLINE inline void over_pairs(const float *x, const float *near, float *out, int64_t rows, int64_t places, int blocks)
{
    float sums[4 * WIDE];
    for (int64_t n = 0; n < rows; n++, x += places) {
        float total = 0.0f;
        beside_of(x, 0, 0, near, places, blocks, sums);
#pragma omp simd reduction(+ : total)
        for (int64_t p = 0; p < places; p++)
            total += x[p] * sums[p];
        out[n] = total;
    }
}

/* Σ x_p near_pq x_q of each row. */
EXPORT CLONES void bqn_over_pairs(const float *x, const float *near, float *out, int64_t rows, int64_t places)
{
    if (places <= WIDE)
        over_pairs(x, near, out, rows, places, 1);
    else if (places <= 2 * WIDE)
        over_pairs(x, near, out, rows, places, 2);
    else if (places <= 3 * WIDE)
        over_pairs(x, near, out, rows, places, 3);
    else
        over_pairs(x, near, out, rows, places, 4);
}

/* Means of weights ±a and their variances a² - m², both rounded. */
EXPORT CLONES void bqn_low_weights(const float *weight, float square, uint16_t *low, uint16_t *noise, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        low[i] = rounded(weight[i]);
        noise[i] = rounded(square - weight[i] * weight[i]);
    }
}

/* As `bqn_statistics`: the mean of each channel, and the variance of the mean plus the average variance. */
EXPORT CLONES void bqn_low_statistics(const uint16_t *mean, const uint16_t *var, int64_t outer, int64_t channels, int64_t inner,
                                      double *work, float *centre, float *total)
{
    double *sums = work, *squares = work + channels, *noise = work + 2 * channels, count = (double)(outer * inner);
    memset(work, 0, 3 * (size_t)channels * sizeof *work);
    for (int64_t n = 0, at = 0; n < outer; n++) {
        if (inner == 1) {
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) {
                float d = widened(mean[at + c]) - widened(mean[c]); /* differences to the first cancel less */
                sums[c] += (double)d;
                squares[c] += (double)d * (double)d;
                noise[c] += (double)widened(var[at + c]);
            }
            at += channels;
            continue;
        }
        for (int64_t c = 0; c < channels; c++, at += inner) {
            float first = widened(mean[c * inner]);
            double s = 0.0, q = 0.0, u = 0.0;
#pragma omp simd reduction(+ : s, q, u)
            for (int64_t i = 0; i < inner; i++) {
                double d = (double)(widened(mean[at + i]) - first);
                s += d;
                q += d * d;
                u += (double)widened(var[at + i]);
            }
            sums[c] += s;
            squares[c] += q;
            noise[c] += u;
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        double d = sums[c] / count, scatter = squares[c] / count - d * d;
        centre[c] = (float)((double)widened(mean[c * inner]) + d);
        total[c] = (float)((scatter < 0.0 ? 0.0 : scatter) + noise[c] / count);
    }
}

/* A row of channels has coefficients side by side, the places of a channel have the same: `step` is one or zero. */
static INLINE inline void low_sign_of_span(const void *mean, const void *var, int low, const float *sign, const float *shift,
                                           int64_t step, uint16_t *out, int64_t at, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float score = score_of(read_at(mean, low, at + i), read_at(var, low, at + i), sign[i * step], shift[i * step]);
        out[at + i] = rounded(erf_of_score(score));
    }
}

static INLINE inline void low_sign(const void *mean, const void *var, int low, const float *sign, const float *shift,
                                   uint16_t *out, int64_t outer, int64_t channels, int64_t inner)
{
    for (int64_t n = 0, at = 0; n < outer; n++) {
        if (inner == 1) {
            low_sign_of_span(mean, var, low, sign, shift, 1, out, at, channels);
            at += channels;
        } else
            for (int64_t c = 0; c < channels; c++, at += inner)
                low_sign_of_span(mean, var, low, sign + c, shift + c, 0, out, at, inner);
    }
}

/* The mean of the sign behind batch norm, rounded; moments are (outer, channels, inner) in memory, in bfloat16 or float32. */
EXPORT CLONES void bqn_low_sign(const void *mean, const void *var, int64_t low, const float *sign, const float *shift,
                                uint16_t *out, int64_t outer, int64_t channels, int64_t inner)
{
    if (low)
        low_sign(mean, var, 1, sign, shift, out, outer, channels, inner);
    else
        low_sign(mean, var, 0, sign, shift, out, outer, channels, inner);
}

/* ∂L/∂z / sqrt v. */
static INLINE inline void low_flow_of_span(const uint16_t *grad, const uint16_t *mean, const uint16_t *var, const float *sign,
                                           const float *shift, int64_t step, float *flow, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float v = widened(var[i]), score = score_of(widened(mean[i]), v, sign[i * step], shift[i * step]);
        flow[i] = slope_of(score, v) * widened(grad[i]);
    }
}

static INLINE inline void low_gradients_of_span(const float *flow, const uint16_t *mean, const uint16_t *var, const float *sign,
                                                const float *shift, const float *rate, const float *fixed, int64_t step,
                                                void *by_mean, void *by_var, int low, int64_t at, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float m = widened(mean[at + i]), v = widened(var[at + i]), f = flow[at + i], s = sign[i * step];
        float score = score_of(m, v, s, shift[i * step]), inverse = 1.0f / sqrtf(pick(v <= FLOOR, FLOOR, v));
        write_at(by_mean, low, at + i, f * s + m * rate[i * step] + fixed[i * step]);
        write_at(by_var, low, at + i, 0.5f * (rate[i * step] - f * score * inverse));
    }
}

static INLINE inline void low_gradients(const float *flow, const uint16_t *mean, const uint16_t *var, const float *sign,
                                        const float *shift, const float *rate, const float *fixed, void *by_mean, void *by_var,
                                        int low, int64_t outer, int64_t channels, int64_t inner)
{
    for (int64_t n = 0, at = 0; n < outer; n++) {
        if (inner == 1) {
            low_gradients_of_span(flow, mean, var, sign, shift, rate, fixed, 1, by_mean, by_var, low, at, channels);
            at += channels;
        } else
            for (int64_t c = 0; c < channels; c++, at += inner)
                low_gradients_of_span(flow, mean, var, sign + c, shift + c, rate + c, fixed + c, 0, by_mean, by_var, low, at,
                                      inner);
    }
}

/* ∂L/∂z / sqrt v of every number into `flow`, and its sum over each channel. */
EXPORT CLONES void bqn_low_sign_flow(const uint16_t *grad, const uint16_t *mean, const uint16_t *var, const float *sign,
                                     const float *shift, float *flow, double *pulls, int64_t outer, int64_t channels,
                                     int64_t inner)
{
    memset(pulls, 0, (size_t)channels * sizeof *pulls);
    for (int64_t n = 0, at = 0; n < outer; n++) {
        if (inner == 1) {
            low_flow_of_span(grad + at, mean + at, var + at, sign, shift, 1, flow + at, channels);
#pragma omp simd
            for (int64_t c = 0; c < channels; c++)
                pulls[c] += (double)flow[at + c];
            at += channels;
            continue;
        }
        for (int64_t c = 0; c < channels; c++, at += inner) {
            float sum = 0.0f;
            low_flow_of_span(grad + at, mean + at, var + at, sign + c, shift + c, 0, flow + at, inner);
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < inner; i++)
                sum += flow[at + i];
            pulls[c] += (double)sum;
        }
    }
}

/* Gradients by both moments, from the flow and what comes through the statistics of each channel: sign flow + rate m + fixed,
 * and (rate - flow z / sqrt v) / 2. In bfloat16 or float32. */
EXPORT CLONES void bqn_low_sign_gradients(const float *flow, const uint16_t *mean, const uint16_t *var, const float *sign,
                                          const float *shift, const float *rate, const float *fixed, void *by_mean,
                                          void *by_var, int64_t low, int64_t outer, int64_t channels, int64_t inner)
{
    if (low)
        low_gradients(flow, mean, var, sign, shift, rate, fixed, by_mean, by_var, 1, outer, channels, inner);
    else
        low_gradients(flow, mean, var, sign, shift, rate, fixed, by_mean, by_var, 0, outer, channels, inner);
}
