/* What the passes in C on a CPU share: how they are compiled, and functions of one number that become vectors. */
#ifndef BQN_CPU_MATH_H
#define BQN_CPU_MATH_H

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
    float steps = pick(x == x, x, -87.0f) * 1.44269504f - 0.5f; /* a NaN is no number of steps, and stays in r */
    int32_t whole = (int32_t)steps;                             /* towards zero, and x is not positive: the nearest */
    float n = (float)whole;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)(whole + 127) << 23;
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

static INLINE inline float score_of(float mean, float var, float sign, float shift)
{
    float distance = mean * sign + shift;
    float score = distance / sqrtf(pick(var <= FLOOR, FLOOR, var));
    float certain = pick(distance >= 0.0f, SURE, -SURE);
    /* written so that a NaN stays a NaN */
    score = pick(score > SURE, SURE, pick(score < -SURE, -SURE, score));
    return pick(var <= FLOOR, certain, score);
}

/* sqrt(2/pi) exp(-z²/2) / sqrt(v): the slope of the mean of a sign by the mean of what it is taken of. */
static INLINE inline float slope_of(float score, float var)
{
    float slope = 0.79788456f * exp_negative(-0.5f * score * score) / sqrtf(pick(var <= FLOOR, FLOOR, var));
    return pick(fabsf(score) >= SURE, 0.0f, slope);
}

/* sgn(γ) and k - sgn(γ) μ per channel, see `normalized_sign.coefficients`; weight and bias may be missing. */
static INLINE inline float offset_of(const float *total, const float *weight, const float *bias, int64_t c)
{
    float size = weight ? fabsf(weight[c]) : 1.0f, shift = bias ? bias[c] : 0.0f;
    if (size == 0.0f)
        return shift >= 0.0f ? INFINITY : -INFINITY;
    return shift * sqrtf(total[c]) / size;
}

static INLINE inline void coefficients(const float *centre, const float *total, const float *weight, const float *bias,
                                       float *sign, float *shift, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) {
        sign[c] = weight ? (float)((weight[c] > 0.0f) - (weight[c] < 0.0f)) : 1.0f;
        shift[c] = offset_of(total, weight, bias, c) - sign[c] * centre[c];
    }
}

/* A number in bfloat16 is the upper half of one in float32. */
static INLINE inline float widened(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* The nearest in bfloat16, of two as near the even one; a NaN stays a NaN. */
static INLINE inline uint16_t rounded(float x)
{
    uint32_t bits, broken = -(uint32_t)(x != x);
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & ~broken) | (0x7fc0u & broken));
}

#endif
