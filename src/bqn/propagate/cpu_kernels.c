/* Passes over weights and activations that torch would make one by one, for float32 on a CPU. In a training step of a small
 * network these passes, not the products, take most of the time: here each is one read and one write.
 *
 * All functions are plain C on contiguous memory; `propagate/cpu.py` calls them, and holds the formulas' meaning.
 */
#include "cpu_math.h"

/* Which passes these are, with which arguments, as `_VERSION` in `propagate/cpu.py`. */
EXPORT int64_t bqn_version(void)
{
    return 1;
}

static const double EASY_UP_TO = 4.0; /* as in `heads` */
static const float TINY = 1.1754944e-38f; /* the smallest normal float */

/* The tilt m = tanh(o / 2) of pairs of logits with log-odds o, the noise 1 - m², and the KL from even odds summed over all.
 * Divisions are what takes longest here, so there is one: with e = exp(-|o|), m (1 + e) is 1 - e. */
EXPORT CLONES void bqn_tilt_and_kl(const float *logits, float *tilt, float *noise, float *kl, int64_t count)
{
    double total = 0.0;
    for (int64_t begin = 0; begin < count; begin += 512) { /* sums of few in float32 keep their digits */
        int64_t end = begin + 512 < count ? begin + 512 : count;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; i++) {
            float odds = logits[2 * i + 1] - logits[2 * i];
            float size = fabsf(odds), half = 0.5f * size, y = half * half;
            float e = exp_negative(-size);
            float both = 1.0f / ((1.0f + e) * (3.0f + e));
            float inverse = (3.0f + e) * both;
            float near = half * (1.0f + y * (-0.333333333f + y * (0.133333333f + y * (-0.053968254f + y * 0.021869489f))));
            float m = pick(size < 0.6f, near, (1.0f - e) * inverse);
            float s = m * (1.0f + e) * ((1.0f + e) * both), q = s * s; /* m / (2 + m) */
            float log1p = s * (2.0f + q * (0.666666667f + q * (0.4f + q * (0.285714286f + q * (0.222222222f + q * (0.181818182f +
                          q * 0.153846154f))))));
            float rest = pick(size < 0.6f, 1.0f - m, 2.0f * e * inverse);
            sum += log1p - half * rest;
            tilt[i] = copysignf(m, odds);
            noise[i] = 4.0f * e * inverse * inverse;
        }
        total += (double)sum;
    }
    *kl = isfinite(total) ? (float)total : NAN; /* an infinite logit must not look like the best of all */
}

static INLINE inline void tilt_and_kl_backward(const float *logits, const float *tilt, const float *grad_tilt,
                                               const float *grad_noise, float grad_kl, float *grad_logits, int64_t count)
{
    float quarter = 0.25f * grad_kl;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float m = tilt[i], by_odds = quarter * (logits[2 * i + 1] - logits[2 * i]);
        if (grad_tilt)
            by_odds += 0.5f * grad_tilt[i];
        if (grad_noise)
            by_odds -= m * grad_noise[i];
        float g = (1.0f - m * m) * by_odds;
        grad_logits[2 * i] = -g;
        grad_logits[2 * i + 1] = g;
    }
}

/* The gradient by pairs of logits; grad_tilt and grad_noise may be missing. */
EXPORT CLONES void bqn_tilt_and_kl_backward(const float *logits, const float *tilt, const float *grad_tilt,
                                            const float *grad_noise, float grad_kl, float *grad_logits, int64_t count)
{
    if (grad_tilt && grad_noise)
        tilt_and_kl_backward(logits, tilt, grad_tilt, grad_noise, grad_kl, grad_logits, count);
    else if (grad_tilt)
        tilt_and_kl_backward(logits, tilt, grad_tilt, NULL, grad_kl, grad_logits, count);
    else if (grad_noise)
        tilt_and_kl_backward(logits, tilt, NULL, grad_noise, grad_kl, grad_logits, count);
    else
        tilt_and_kl_backward(logits, tilt, NULL, NULL, grad_kl, grad_logits, count);
}

/* log(x) for x >= 1, to about one unit in the last place. */
static INLINE inline float log_of(float x)
{
    int32_t bits, whole;
    float fraction;
    memcpy(&bits, &x, sizeof bits);
    whole = (bits - 0x3f3504f3) >> 23; /* so that the fraction lies between the square roots of 1/2 and 2 */
    bits -= whole * 8388608;
    memcpy(&fraction, &bits, sizeof fraction);
    float s = (fraction - 1.0f) / (fraction + 1.0f), q = s * s;
    float series = s * (2.0f + q * (0.666666667f + q * (0.4f + q * (0.285714286f + q * 0.222222222f))));
    return (float)whole * 0.693147181f + series;
}

#define BLOCK 256
#define MOST_LEVELS 16 /* the caller, `cpu.MOST_LEVELS`, must know it */

/* What a block of weights with `levels` logits each has: probabilities, log-probabilities less those of the prior, means. */
struct block {
    float probs[MOST_LEVELS][BLOCK], gains[MOST_LEVELS][BLOCK], mean[BLOCK];
};

static INLINE inline void read_block(const float *logits, const float *values, const float *log_prior, int64_t levels,
                                     int64_t count, struct block *out)
{
    float largest[BLOCK], sum[BLOCK];
    for (int64_t i = 0; i < count; i++) {
        largest[i] = logits[i * levels];
        sum[i] = out->mean[i] = 0.0f;
    }
    for (int64_t d = 0; d < levels; d++)
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float logit = logits[i * levels + d];
            out->gains[d][i] = logit;
            largest[i] = pick(logit > largest[i], logit, largest[i]);
        }
    for (int64_t d = 0; d < levels; d++)
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float x = out->gains[d][i] - largest[i], e = exp_negative(x);
            out->gains[d][i] = x - log_prior[d];
            out->probs[d][i] = e;
            sum[i] += e;
            out->mean[i] += e * values[d];
        }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        largest[i] = log_of(sum[i]);
        sum[i] = 1.0f / sum[i];
        out->mean[i] *= sum[i];
    }
    for (int64_t d = 0; d < levels; d++)
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out->probs[d][i] *= sum[i];
            out->gains[d][i] -= largest[i];
        }
}

EXPORT CLONES void bqn_moments_and_kl(const float *logits, const float *values, const float *log_prior, int64_t levels,
                                      float *mean, float *var, double *kl, int64_t count)
{
    struct block block;
    double total = 0.0;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t size = begin + BLOCK < count ? BLOCK : count - begin;
        float spread[BLOCK], sum = 0.0f;
        read_block(logits + begin * levels, values, log_prior, levels, size, &block);
        for (int64_t i = 0; i < size; i++)
            spread[i] = 0.0f;
        for (int64_t d = 0; d < levels; d++)
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < size; i++) {
                float distance = values[d] - block.mean[i];
                spread[i] += block.probs[d][i] * distance * distance;
                sum += block.probs[d][i] * block.gains[d][i];
            }
        memcpy(mean + begin, block.mean, size * sizeof *mean);
        memcpy(var + begin, spread, size * sizeof *var);
        total += (double)sum;
    }
    *kl = total;
}

/* The gradient by the logits; grad_mean and grad_var may be missing. */
EXPORT CLONES void bqn_moments_and_kl_backward(const float *logits, const float *values, const float *log_prior, int64_t levels,
                                               const float *grad_mean, const float *grad_var, float grad_kl,
                                               float *grad_logits, int64_t count)
{
    struct block block;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t size = begin + BLOCK < count ? BLOCK : count - begin;
        float by_mean[BLOCK], by_var[BLOCK], common[BLOCK];
        read_block(logits + begin * levels, values, log_prior, levels, size, &block);
        for (int64_t i = 0; i < size; i++) {
            by_mean[i] = grad_mean ? grad_mean[begin + i] : 0.0f;
            by_var[i] = grad_var ? grad_var[begin + i] : 0.0f;
            common[i] = 0.0f;
        }
        for (int64_t d = 0; d < levels; d++)
#pragma omp simd
            for (int64_t i = 0; i < size; i++) {
                float distance = values[d] - block.mean[i];
                float by_prob = distance * (by_mean[i] + distance * by_var[i]) + grad_kl * block.gains[d][i];
                block.gains[d][i] = by_prob;
                common[i] += block.probs[d][i] * by_prob;
            }
        float *out = grad_logits + begin * levels;
        for (int64_t d = 0; d < levels; d++)
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                out[i * levels + d] = block.probs[d][i] * (block.gains[d][i] - common[i]);
    }
}

/* Activations are (outer, channels, inner) in memory. Statistics per channel: the mean, and the variance of the mean plus
 * the average variance. `work` holds three doubles a channel. */
EXPORT CLONES void bqn_statistics(const float *mean, const float *var, int64_t outer, int64_t channels, int64_t inner,
                                  double *work, float *centre, float *total)
{
    double *sums = work, *squares = work + channels, *noise = work + 2 * channels;
    memset(work, 0, 3 * (size_t)channels * sizeof *work);
    for (int64_t n = 0; n < outer; n++) {
        if (inner == 1) {
            const float *m = mean + n * channels, *v = var + n * channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) {
                float d = m[c] - mean[c]; /* differences to the first element cancel less */
                sums[c] += (double)d;
                squares[c] += (double)d * (double)d;
                noise[c] += (double)v[c];
            }
            continue;
        }
        for (int64_t c = 0; c < channels; c++) {
            const float *m = mean + (n * channels + c) * inner, *v = var + (n * channels + c) * inner;
            float first = mean[c * inner], s = 0.0f, q = 0.0f, u = 0.0f;
#pragma omp simd reduction(+ : s, q, u)
            for (int64_t i = 0; i < inner; i++) {
                float d = m[i] - first;
                s += d;
                q += d * d;
                u += v[i];
            }
            sums[c] += (double)s;
            squares[c] += (double)q;
            noise[c] += (double)u;
        }
    }
    double count = (double)(outer * inner);
    for (int64_t c = 0; c < channels; c++) {
        double d = sums[c] / count, scatter = squares[c] / count - d * d;
        centre[c] = (float)((double)mean[c * inner] + d);
        total[c] = (float)((scatter < 0.0 ? 0.0 : scatter) + noise[c] / count);
    }
}

/* A row of channels has coefficients side by side, the places of a channel have the same: `step` is one or zero. */
static INLINE inline void sign_of_span(const float *mean, const float *var, const float *sign, const float *shift, int64_t step,
                                       float *out, float *slope, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float score = score_of(mean[i], var[i], sign[i * step], shift[i * step]);
        out[i] = erf_of_score(score);
        if (slope)
            slope[i] = sign[i * step] * slope_of(score, var[i]);
    }
}

/* The mean of the sign behind batch norm and, if asked for, its slope by the mean in front of both. `work` holds two rows. */
EXPORT CLONES void bqn_normalized_sign(const float *mean, const float *var, const float *centre, const float *total,
                                       const float *weight, const float *bias, float *work, float *out, float *slope,
                                       int64_t outer, int64_t channels, int64_t inner)
{
    float *sign = work, *shift = work + channels;
    coefficients(centre, total, weight, bias, sign, shift, channels);
    for (int64_t n = 0; n < outer; n++) {
        int64_t at = n * channels * inner;
        if (inner == 1 && slope)
            sign_of_span(mean + at, var + at, sign, shift, 1, out + at, slope + at, channels);
        else if (inner == 1)
            sign_of_span(mean + at, var + at, sign, shift, 1, out + at, NULL, channels);
        else
            for (int64_t c = 0; c < channels; c++, at += inner)
                sign_of_span(mean + at, var + at, sign + c, shift + c, 0, out + at, slope ? slope + at : NULL, inner);
    }
}

/* ∂L/∂z / sqrt v into `flow`, and what flows to var by itself. */
static INLINE inline void flow_of_span(const float *grad, const float *by_slope, const float *mean, const float *var,
                                       const float *sign, const float *shift, int64_t step, float *flow, float *grad_var,
                                       int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float score = score_of(mean[i], var[i], sign[i * step], shift[i * step]);
        float inverse = 1.0f / sqrtf(pick(var[i] <= FLOOR, FLOOR, var[i]));
        float slope = slope_of(score, var[i]), f = slope * grad[i], own = 0.0f;
        if (by_slope) {
            own = by_slope[i] * sign[i * step] * slope * inverse;
            f -= own * score;
        }
        flow[i] = f;
        grad_var[i] = -0.5f * inverse * (f * score + own);
    }
}

/* Gradients by mean and var, per channel by weight and bias, and the sum A of the flow; `count` is the n of the statistics,
 * infinite where these are constants. by_slope and grad_weight may be missing. `pulls` holds three rows. */
EXPORT CLONES void bqn_normalized_sign_backward(const float *grad, const float *by_slope, const float *mean, const float *var,
                                                const float *centre, const float *total, const float *weight, const float *bias,
                                                double *pulls, double count, float *grad_mean, float *grad_var,
                                                float *pull, float *grad_weight, float *grad_bias, int64_t outer,
                                                int64_t channels, int64_t inner)
{
    float *sign = (float *)(pulls + channels), *shift = sign + channels, *rate = shift + channels, *fixed = rate + channels;
    coefficients(centre, total, weight, bias, sign, shift, channels);
    memset(pulls, 0, (size_t)channels * sizeof *pulls);
    for (int64_t n = 0; n < outer; n++) {
        int64_t at = n * channels * inner;
        if (inner == 1) {
            const float *flow = grad_mean + at;
            if (by_slope)
                flow_of_span(grad + at, by_slope + at, mean + at, var + at, sign, shift, 1, grad_mean + at, grad_var + at, channels);
            else
                flow_of_span(grad + at, NULL, mean + at, var + at, sign, shift, 1, grad_mean + at, grad_var + at, channels);
#pragma omp simd
            for (int64_t c = 0; c < channels; c++)
                pulls[c] += (double)flow[c];
            continue;
        }
        for (int64_t c = 0; c < channels; c++, at += inner) {
            const float *flow = grad_mean + at;
            float sum = 0.0f;
            flow_of_span(grad + at, by_slope ? by_slope + at : NULL, mean + at, var + at, sign + c, shift + c, 0,
                         grad_mean + at, grad_var + at, inner);
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < inner; i++)
                sum += flow[i];
            pulls[c] += (double)sum;
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        float offset = offset_of(total, weight, bias, c), each = 1.0f / (float)count;
        pull[c] = (float)pulls[c];
        rate[c] = sign[c] == 0.0f ? 0.0f : pull[c] * offset * each / total[c];
        fixed[c] = -sign[c] * pull[c] * each - rate[c] * centre[c];
        if (grad_weight) {
            grad_weight[c] = weight[c] == 0.0f ? 0.0f : -pull[c] * offset / weight[c];
            grad_bias[c] = weight[c] == 0.0f ? 0.0f : pull[c] * sqrtf(total[c]) / fabsf(weight[c]);
        }
    }
    for (int64_t n = 0; n < outer; n++) {
        int64_t at = n * channels * inner;
        if (inner == 1) {
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) {
                grad_mean[at + c] = grad_mean[at + c] * sign[c] + mean[at + c] * rate[c] + fixed[c];
                grad_var[at + c] += 0.5f * rate[c];
            }
            continue;
        }
        for (int64_t c = 0; c < channels; c++, at += inner) {
            float a = sign[c], b = rate[c], d = fixed[c];
#pragma omp simd
            for (int64_t i = 0; i < inner; i++) {
                grad_mean[at + i] = grad_mean[at + i] * a + mean[at + i] * b + d;
                grad_var[at + i] += 0.5f * b;
            }
        }
    }
}

/* What meets the noise of weights in a product, (x - c)², and for inputs of square `square` the sum over a row of their
 * variances, times `scale`. The centre may be missing, and so may `total`, where inputs are known. */
EXPORT CLONES void bqn_centred_squares(const float *x, const float *centre, float square, float scale, float *squares,
                                       float *total, int64_t rows, int64_t columns)
{
    for (int64_t n = 0; n < rows; n++, x += columns, squares += columns) {
        float sum = 0.0f;
        if (centre) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < columns; i++) {
                float d = x[i] - centre[i];
                squares[i] = d * d;
                sum += square - x[i] * x[i];
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < columns; i++) {
                squares[i] = x[i] * x[i];
                sum += square - x[i] * x[i];
            }
        }
        if (total)
            total[n] = sum < 0.0f ? 0.0f : scale * sum; /* a rounded mean may lie a hair outside */
    }
}

/* The gradient of that by x, added to what is there, and by the centre. `by_squares` is the gradient by the squares, and
 * `pull` that by the total of each row; it may be missing, and so may both of the centre. */
EXPORT CLONES void bqn_centred_squares_backward(const float *x, const float *centre, const float *by_squares, const float *pull,
                                                float scale, float *by_x, float *by_centre, int64_t rows, int64_t columns)
{
    if (by_centre)
        memset(by_centre, 0, (size_t)columns * sizeof *by_centre);
    for (int64_t n = 0; n < rows; n++, x += columns, by_squares += columns, by_x += columns) {
        float twice = pull ? 2.0f * scale * pull[n] : 0.0f;
        if (centre) {
#pragma omp simd
            for (int64_t i = 0; i < columns; i++) {
                float through = 2.0f * (x[i] - centre[i]) * by_squares[i];
                by_centre[i] -= through;
                by_x[i] += through - twice * x[i];
            }
        } else {
#pragma omp simd
            for (int64_t i = 0; i < columns; i++)
                by_x[i] += x[i] * (2.0f * by_squares[i] - twice);
        }
    }
}

/* The variance of what lies on two levels, from its mean. */
EXPORT CLONES void bqn_doubt(const float *mean, float low, float high, float *out, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float doubt = (high - mean[i]) * (mean[i] - low);
        out[i] = pick(doubt < 0.0f, 0.0f, doubt);
    }
}

/* Its gradient, in place of that by the variance. */
EXPORT CLONES void bqn_doubt_backward(const float *mean, float low, float high, float *grad, int64_t count)
{
    float sum = low + high;
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        grad[i] *= sum - 2.0f * mean[i];
}

/* A variance with what it gains by common noise, of which `share` of it is left at least. */
EXPORT CLONES void bqn_with_noise(const float *var, const float *noise, float share, float *out, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float sum = var[i] + noise[i], least = share * var[i];
        out[i] = pick(sum < least, least, sum);
    }
}

EXPORT CLONES void bqn_with_noise_backward(const float *var, const float *noise, float share, const float *grad, float *by_var,
                                           float *by_noise, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        int above = var[i] + noise[i] >= share * var[i];
        by_var[i] = pick(above, grad[i], share * grad[i]);
        by_noise[i] = pick(above, grad[i], 0.0f);
    }
}

/* Means of the slopes over the batch, the weights times these and their squares, and how large the slopes of each example
 * are beside the means: `units.py` says what for. `sizes` are sums of |slope|, and behind them that of |mean|, and `share`
 * the squares of the former over the latter. */
EXPORT CLONES void bqn_mean_slopes(const float *slope, const float *outer, float *means, float *sizes, float *share,
                                   float *scaled, float *squares, int64_t rows, int64_t units, int64_t outputs)
{
    float each = 1.0f / (float)rows, whole = 0.0f;
    memset(means, 0, (size_t)units * sizeof *means);
    for (int64_t n = 0; n < rows; n++, slope += units) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t u = 0; u < units; u++) {
            means[u] += slope[u];
            sum += fabsf(slope[u]);
        }
        sizes[n] = sum;
    }
#pragma omp simd reduction(+ : whole)
    for (int64_t u = 0; u < units; u++) {
        means[u] *= each;
        whole += fabsf(means[u]);
    }
    sizes[rows] = whole;
    for (int64_t n = 0; n < rows; n++) {
        float ratio = sizes[n] / (whole < TINY ? TINY : whole);
        share[n] = ratio * ratio;
    }
    for (int64_t k = 0; k < outputs; k++, outer += units, scaled += units, squares += units) {
#pragma omp simd
        for (int64_t u = 0; u < units; u++) {
            scaled[u] = outer[u] * means[u];
            squares[u] = scaled[u] * scaled[u];
        }
    }
}

static INLINE inline float sign_of(float x)
{
    return pick(x == 0.0f, 0.0f, copysignf(1.0f, x));
}

/* From the gradients by the scaled weights and by their squares and by the share of each example to those by weights and
 * slopes. `by_scaled` becomes the gradient by the weights. `work` holds a row of units. */
EXPORT CLONES void bqn_mean_slopes_backward(const float *slope, const float *outer, const float *means, const float *sizes,
                                            const float *scaled, const float *by_squares, const float *by_share, float *work,
                                            float *by_scaled, float *by_slope, int64_t rows, int64_t units, int64_t outputs)
{
    float whole = sizes[rows], by_whole = 0.0f, each = 1.0f / (float)rows;
    float inverse = whole >= TINY ? 1.0f / whole : 0.0f;
    for (int64_t n = 0; n < rows; n++) {
        float share = sizes[n] * inverse;
        by_whole -= 2.0f * by_share[n] * share * share * inverse;
    }
    memset(work, 0, (size_t)units * sizeof *work);
    for (int64_t k = 0; k < outputs; k++, outer += units, scaled += units, by_scaled += units, by_squares += units) {
#pragma omp simd
        for (int64_t u = 0; u < units; u++) {
            float by = by_scaled[u] + 2.0f * scaled[u] * by_squares[u];
            work[u] += by * outer[u];
            by_scaled[u] = by * means[u];
        }
    }
#pragma omp simd
    for (int64_t u = 0; u < units; u++)
        work[u] = each * (work[u] + by_whole * sign_of(means[u]));
    for (int64_t n = 0; n < rows; n++, slope += units, by_slope += units) {
        float by_size = 2.0f * by_share[n] * (sizes[n] * inverse * inverse);
#pragma omp simd
        for (int64_t u = 0; u < units; u++)
            by_slope[u] = work[u] + by_size * sign_of(slope[u]);
    }
}

/* ½ Σ a² v + log Σ exp(m + (½ - a) v), and the softmax of these exponents. */
static double tilted(const float *mean, const float *var, const double *tilt, double *probs, int64_t classes)
{
    double top = -INFINITY, square = 0.0, total = 0.0;
    for (int64_t k = 0; k < classes; k++) {
        probs[k] = mean[k] + (0.5 - tilt[k]) * var[k];
        square += tilt[k] * tilt[k] * var[k];
        top = probs[k] > top ? probs[k] : top;
    }
    for (int64_t k = 0; k < classes; k++)
        total += probs[k] = exp(probs[k] - top);
    for (int64_t k = 0; k < classes; k++)
        probs[k] /= total;
    return 0.5 * square + top + log(total);
}

/* The tilt that makes all exponents equal as far as 0 <= a <= 1 and Σ a = 1 allow. */
static void level_tilt(const float *mean, const float *var, double *tilt, int64_t classes)
{
    double low = INFINITY, high = -INFINITY;
    for (int64_t k = 0; k < classes; k++) {
        low = fmin(low, mean[k] - 0.5 * var[k]);
        high = fmax(high, mean[k] + 0.5 * var[k]);
    }
    for (int pass = 0; pass < 24; pass++) {
        double level = 0.5 * (low + high), sum = 0.0;
        for (int64_t k = 0; k < classes; k++) {
            tilt[k] = fmin(fmax(0.5 + (mean[k] - level) / fmax(var[k], 1e-6), 0.0), 1.0);
            sum += tilt[k];
        }
        if (sum > 1.0)
            low = level;
        else
            high = level;
    }
}

/* The tilt of a row with the lowest bound, into `work`, and the softmax of its exponents behind it; the bound is returned.
 * `heads.tilted_log_sum_exp` says of what. Newton steps, whose Hessian is diagonal plus rank one, that accept no worse
 * point, from the softmax of the means or the best of three starts. `work` holds five rows. */
static double best_tilt(const float *mean, const float *var, double *work, int64_t classes)
{
    double *tilt = work, *probs = work + classes, *other = work + 2 * classes, *spare = work + 3 * classes,
           *step = work + 4 * classes;
    double top = -INFINITY, total = 0.0, doubt = 0.0;
    for (int64_t k = 0; k < classes; k++) {
        top = mean[k] > top ? mean[k] : top;
        doubt = var[k] > doubt ? var[k] : doubt;
    }
    for (int64_t k = 0; k < classes; k++)
        total += tilt[k] = exp(mean[k] - top);
    for (int64_t k = 0; k < classes; k++)
        tilt[k] /= total;
    double value = tilted(mean, var, tilt, probs, classes);
    /* The bound is convex in the tilt: a better start only spares steps, and where variances are small there are few. */
    for (int start = 0; start < 2 && doubt > EASY_UP_TO; start++) {
        if (start == 0)
            memset(other, 0, sizeof(double) * (size_t)classes);
        else
            level_tilt(mean, var, other, classes);
        double reached = tilted(mean, var, other, spare, classes);
        if (reached < value) {
            value = reached;
            memcpy(tilt, other, sizeof(double) * (size_t)classes);
            memcpy(probs, spare, sizeof(double) * (size_t)classes);
        }
    }
    for (int pass = 0; pass < 20; pass++) {
        double pull = 0.0, weight = 0.0, largest = 0.0, size = 1.0;
        for (int64_t k = 0; k < classes; k++) {
            double damped = 1.0 / (1.0 + var[k] * probs[k]);
            step[k] = (tilt[k] - probs[k]) * damped;
            pull += var[k] * probs[k] * step[k];
            weight += probs[k] * damped;
            spare[k] = probs[k] * damped;
        }
        for (int64_t k = 0; k < classes; k++) {
            step[k] += spare[k] * (pull / weight);
            largest = fmax(largest, fabs(step[k]));
        }
        if (!(largest > 1e-9)) /* also of a NaN there is nothing better to find */
            break;
        for (; size > 1e-3; size *= 0.3) {
            for (int64_t k = 0; k < classes; k++)
                other[k] = tilt[k] - size * step[k];
            double reached = tilted(mean, var, other, spare, classes);
            if (reached <= value) {
                value = reached;
                memcpy(tilt, other, sizeof(double) * (size_t)classes);
                memcpy(probs, spare, sizeof(double) * (size_t)classes);
                break;
            }
        }
        if (size <= 1e-3)
            break;
    }
    return value;
}

EXPORT void bqn_best_tilt(const float *mean, const float *var, float *out, double *work, int64_t rows, int64_t classes)
{
    for (int64_t row = 0; row < rows; row++, mean += classes, var += classes, out += classes) {
        best_tilt(mean, var, work, classes);
        for (int64_t k = 0; k < classes; k++)
            out[k] = (float)work[k];
    }
}

/* Of each row the bound on the log-likelihood of its label, for logits mean / s and var / s², and its derivatives by mean,
 * var and log s. `work` holds six rows. Returns how many rows could be done: fewer than all if a label is none of 0 to
 * `classes` - 1. */
EXPORT int64_t bqn_tilted_likelihood(const float *mean, const float *var, const float *log_scale, const int64_t *labels,
                                  double *work, float *out, float *by_mean, float *by_var, float *by_scale, int64_t rows,
                                  int64_t classes)
{
    float inverse = expf(-*log_scale), *m = (float *)(work + 5 * classes), *v = m + classes;
    const double *tilt = work, *probs = work + classes;
    for (int64_t row = 0; row < rows; row++, mean += classes, var += classes, by_mean += classes, by_var += classes) {
        for (int64_t k = 0; k < classes; k++) {
            m[k] = mean[k] * inverse;
            v[k] = var[k] * (inverse * inverse);
        }
        double through = 0.0;
        if (labels[row] < 0 || labels[row] >= classes)
            return row;
        out[row] = (float)(m[labels[row]] - best_tilt(m, v, work, classes));
        for (int64_t k = 0; k < classes; k++) {
            double by_m = (k == labels[row]) - probs[k], by_v = -0.5 * tilt[k] * tilt[k] - (0.5 - tilt[k]) * probs[k];
            through -= by_m * m[k] + 2.0 * by_v * v[k];
            by_mean[k] = (float)(by_m * inverse);
            by_var[k] = (float)(by_v * inverse * inverse);
        }
        by_scale[row] = (float)through;
    }
    return rows;
}
