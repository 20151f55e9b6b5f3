/* Passes over weights and activations that torch would make one by one, for float32 on a CPU. In a training step of a small
 * network these passes, not the products, take most of the time: here each is one read and one write.
 *
 * All functions are plain C on contiguous memory; `propagate/cpu.py` calls them, and holds the formulas' meaning.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(NO_CLONES)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#if defined(__GNUC__)
#define INLINE __attribute__((always_inline)) /* into every clone, so that its vectors are as wide */
#else
#define INLINE
#endif

static const float SURE = 40.0f;
static const float FLOOR = 1.0842022e-19f; /* the square root of the smallest normal float */

/* `yes` or `no`, both computed, without a branch: a branch would keep the compiler from using vectors. */
static INLINE inline float pick(int condition, float yes, float no)
{
    int32_t mask = -condition, a, b;
    float result;
    memcpy(&a, &yes, sizeof a);
    memcpy(&b, &no, sizeof b);
    a = (a & mask) | (b & ~mask);
    memcpy(&result, &a, sizeof result);
    return result;
}

/* exp(x) for -87 <= x <= 0, to about one unit in the last place; smaller x count as -87. */
static INLINE inline float exp_negative(float x)
{
    x = pick(x < -87.0f, -87.0f, x);
    float steps = x * 1.44269504f - 0.5f;
    int32_t whole = (int32_t)steps; /* towards zero, and x is not positive: the nearest */
    float n = (float)whole;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = (whole + 127) * 8388608;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* erf(x / sqrt 2), to 4e-7. */
static INLINE inline float erf_of_score(float score)
{
    float x = fabsf(score) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * x);
    float tail = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float square = x * x;
    float far = 1.0f - tail * exp_negative(-square);
    /* near zero the series keeps the relative accuracy */
    float near = x * (1.128379167f + square * (-0.3761263890f + square * (0.1128379167f + square * (-0.02686617064f +
                 square * (0.005223977625f + square * -0.0008548327023f)))));
    return copysignf(pick(x < 0.5f, near, far), score);
}

EXPORT CLONES void bqn_tilt_and_kl(const float *logits, float *tilt, double *kl, int64_t count)
{
    double total = 0.0;
    for (int64_t begin = 0; begin < count; begin += 4096) {
        int64_t end = begin + 4096 < count ? begin + 4096 : count;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; i++) {
            float odds = logits[2 * i + 1] - logits[2 * i];
            float size = fabsf(odds), half = 0.5f * size, y = half * half;
            float e = exp_negative(-size);
            float far = (1.0f - e) / (1.0f + e);
            float near = half * (1.0f + y * (-0.333333333f + y * (0.133333333f + y * (-0.053968254f + y * 0.021869489f))));
            float m = pick(size < 0.6f, near, far);
            float s = m / (2.0f + m), q = s * s;
            float log1p = s * (2.0f + q * (0.666666667f + q * (0.4f + q * (0.285714286f + q * (0.222222222f + q * (0.181818182f +
                          q * 0.153846154f))))));
            float rest = pick(size < 0.6f, 1.0f - m, 2.0f * e / (1.0f + e));
            sum += log1p - half * rest;
            tilt[i] = copysignf(m, odds);
        }
        total += (double)sum;
    }
    *kl = total;
}

/* The gradient by pairs of logits; grad_tilt may be missing. */
EXPORT CLONES void bqn_tilt_and_kl_backward(const float *logits, const float *tilt, const float *grad_tilt, float grad_kl,
                                            float *grad_logits, int64_t count)
{
    float quarter = 0.25f * grad_kl;
    if (grad_tilt) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float odds = logits[2 * i + 1] - logits[2 * i];
            float g = (1.0f - tilt[i] * tilt[i]) * (0.5f * grad_tilt[i] + quarter * odds);
            grad_logits[2 * i] = -g;
            grad_logits[2 * i + 1] = g;
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float odds = logits[2 * i + 1] - logits[2 * i];
        float g = (1.0f - tilt[i] * tilt[i]) * (quarter * odds);
        grad_logits[2 * i] = -g;
        grad_logits[2 * i + 1] = g;
    }
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

static INLINE inline float score_of(float mean, float var, float sign, float shift)
{
    float distance = mean * sign + shift;
    float score = distance / sqrtf(pick(var <= FLOOR, FLOOR, var));
    float certain = pick(distance >= 0.0f, SURE, -SURE);
    /* written so that a NaN stays a NaN */
    score = pick(score > SURE, SURE, pick(score < -SURE, -SURE, score));
    return pick(var <= FLOOR, certain, score);
}

static INLINE inline float flow_of(float grad, float score, float var)
{
    float flow = grad * 0.79788456f * exp_negative(-0.5f * score * score) / sqrtf(pick(var <= FLOOR, FLOOR, var));
    return pick(fabsf(score) >= SURE, 0.0f, flow);
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

EXPORT CLONES void bqn_normalized_sign(const float *mean, const float *var, const float *sign, const float *shift, float *out,
                                       int64_t outer, int64_t channels, int64_t inner)
{
    for (int64_t n = 0; n < outer; n++) {
        if (inner == 1) {
            int64_t at = n * channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; c++)
                out[at + c] = erf_of_score(score_of(mean[at + c], var[at + c], sign[c], shift[c]));
            continue;
        }
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = (n * channels + c) * inner;
            float a = sign[c], b = shift[c];
#pragma omp simd
            for (int64_t i = 0; i < inner; i++)
                out[at + i] = erf_of_score(score_of(mean[at + i], var[at + i], a, b));
        }
    }
}

/* First pass of backward: g e / sqrt v into `flow`, and its sum per channel into `pull`. */
EXPORT CLONES void bqn_normalized_sign_flow(const float *grad, const float *mean, const float *var, const float *sign,
                                            const float *shift, float *flow, double *pull, int64_t outer, int64_t channels,
                                            int64_t inner)
{
    memset(pull, 0, (size_t)channels * sizeof *pull);
    for (int64_t n = 0; n < outer; n++) {
        if (inner == 1) {
            int64_t at = n * channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) {
                float f = flow_of(grad[at + c], score_of(mean[at + c], var[at + c], sign[c], shift[c]), var[at + c]);
                flow[at + c] = f;
                pull[c] += (double)f;
            }
            continue;
        }
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = (n * channels + c) * inner;
            float a = sign[c], b = shift[c], sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < inner; i++) {
                float f = flow_of(grad[at + i], score_of(mean[at + i], var[at + i], a, b), var[at + i]);
                flow[at + i] = f;
                sum += f;
            }
            pull[c] += (double)sum;
        }
    }
}

/* Second pass: from the flow to the gradients by mean (in place of the flow) and by var. */
EXPORT CLONES void bqn_normalized_sign_backward(float *flow, const float *mean, const float *var, const float *sign,
                                                const float *shift, const float *constant, const float *slope,
                                                float *grad_var, int64_t outer, int64_t channels, int64_t inner)
{
    for (int64_t n = 0; n < outer; n++) {
        if (inner == 1) {
            int64_t at = n * channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) {
                float m = mean[at + c], v = var[at + c], f = flow[at + c];
                float score = score_of(m, v, sign[c], shift[c]);
                grad_var[at + c] = -0.5f * f * score / sqrtf(pick(v <= FLOOR, FLOOR, v)) + 0.5f * slope[c];
                flow[at + c] = f * sign[c] + m * slope[c] + constant[c];
            }
            continue;
        }
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = (n * channels + c) * inner;
            float a = sign[c], b = shift[c], rate = slope[c], fixed = constant[c];
#pragma omp simd
            for (int64_t i = 0; i < inner; i++) {
                float m = mean[at + i], v = var[at + i], f = flow[at + i];
                float score = score_of(m, v, a, b);
                grad_var[at + i] = -0.5f * f * score / sqrtf(pick(v <= FLOOR, FLOOR, v)) + 0.5f * rate;
                flow[at + i] = f * a + m * rate + fixed;
            }
        }
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

/* For each row the tilt with the lowest bound: `heads.tilted_log_sum_exp` says of what. Newton steps, whose Hessian is
 * diagonal plus rank one, that accept no worse point, from the best of three starts. `work` holds five rows. */
EXPORT void bqn_best_tilt(const float *mean, const float *var, float *out, double *work, int64_t rows, int64_t classes)
{
    double *tilt = work, *probs = work + classes, *other = work + 2 * classes, *spare = work + 3 * classes,
           *step = work + 4 * classes;
    for (int64_t row = 0; row < rows; row++, mean += classes, var += classes, out += classes) {
        for (int64_t k = 0; k < classes; k++)
            tilt[k] = 0.0;
        double value = tilted(mean, var, tilt, probs, classes);
        for (int start = 0; start < 2; start++) {
            if (start == 0) {
                double top = -INFINITY, total = 0.0;
                for (int64_t k = 0; k < classes; k++)
                    top = mean[k] > top ? mean[k] : top;
                for (int64_t k = 0; k < classes; k++)
                    total += other[k] = exp(mean[k] - top);
                for (int64_t k = 0; k < classes; k++)
                    other[k] /= total;
            } else {
                level_tilt(mean, var, other, classes);
            }
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
        for (int64_t k = 0; k < classes; k++)
            out[k] = (float)tilt[k];
    }
}
