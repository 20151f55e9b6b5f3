/*@ argmax */
static int net_argmax(const NET_INTEGER *x) {
    int best = 0;
    for (int k = 1; k < NET_OUTPUTS; ++k)
        if (x[k] > x[best]) best = k;
    return best;
}

/*@ probabilities: argmax */
/* exp(-gap * scale) in units of 2^-31, by integers alone: 2^-t, by a polynomial for the fraction of t and a shift. */
static uint32_t net_exponential(uint64_t gap, const net_scale *scale) {
    static const uint32_t terms[] = {NET_POLYNOMIAL};
    if (gap > scale->most) return 0;
    const uint64_t t = gap * scale->multiplier >> scale->shift;
    if (t >> 32 > 31) return 0;
    int32_t i = (int32_t)(sizeof terms / sizeof *terms) - 1;
    uint32_t power = terms[i];
    while (--i >= 0) power = terms[i] - (uint32_t)((t & 0xffffffffu) * power >> 32);
    return power >> (t >> 32);
}

int net_probabilities(const NET_INPUT *given, uint32_t *probabilities) {
    static NET_INTEGER logits[NET_OUTPUTS];
    static uint64_t sums[NET_OUTPUTS];
    for (int k = 0; k < NET_OUTPUTS; ++k) sums[k] = 0;
    for (int member = 0; member < NET_MEMBERS; ++member) {
        if (net_logits(given, member, logits)) return -1;
        const uint64_t most = (uint64_t)logits[net_argmax(logits)];
        uint64_t total = 0;
        for (int k = 0; k < NET_OUTPUTS; ++k) {
            probabilities[k] = net_exponential(most - (uint64_t)logits[k], &net_scales[member]);
            total += probabilities[k];
        }
        for (int k = 0; k < NET_OUTPUTS; ++k) sums[k] += (((uint64_t)probabilities[k] << 31) + total / 2) / total;
    }
    for (int k = 0; k < NET_OUTPUTS; ++k) probabilities[k] = (uint32_t)((sums[k] + NET_MEMBERS / 2) / NET_MEMBERS);
    return 0;
}

/*@ predict_one: argmax */
int net_predict(const NET_INPUT *given) {
    static NET_INTEGER logits[NET_OUTPUTS];
    return net_logits(given, 0, logits) ? -1 : net_argmax(logits);
}

/*@ predict: probabilities */
int net_predict(const NET_INPUT *given) {
    static uint32_t probabilities[NET_OUTPUTS];
    int best = 0;
    if (net_probabilities(given, probabilities)) return -1;
    for (int k = 1; k < NET_OUTPUTS; ++k)
        if (probabilities[k] > probabilities[best]) best = k;
    return best;
}

/*@ votes: argmax */
int net_votes(const NET_INPUT *given, uint16_t *votes) {
    static NET_INTEGER logits[NET_OUTPUTS];
    for (int k = 0; k < NET_OUTPUTS; ++k) votes[k] = 0;
    for (int member = 0; member < NET_MEMBERS; ++member) {
        if (net_logits(given, member, logits)) return -1;
        ++votes[net_argmax(logits)];
    }
    return 0;
}

/*@ moments */
int net_moments(const NET_INPUT *given, double *mean, double *variance) {
    static NET_INTEGER logits[NET_OUTPUTS];
    for (int i = 0; i < NET_TARGETS; ++i) mean[i] = variance[i] = 0.0;
    for (int member = 0; member < NET_MEMBERS; ++member) {
        if (net_logits(given, member, logits)) return -1;
        for (int i = 0; i < NET_TARGETS; ++i) {
            double own = 0.0;
            for (int k = 0; k < NET_OUTPUTS; ++k) own += (double)net_head[member][i][k] * (NET_STEP * (double)logits[k]);
            own = own * net_unit[i] + net_shift[i];
            const double gap = own - mean[i];
            mean[i] += gap / (member + 1);
            variance[i] += net_noise[member][i] + gap * (own - mean[i]);
        }
    }
    for (int i = 0; i < NET_TARGETS; ++i) variance[i] /= NET_MEMBERS;
    return 0;
}
