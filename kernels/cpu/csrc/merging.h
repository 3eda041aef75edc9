// Merging of similar tokens (Token Merging, arXiv 2210.09461, section 3): the patch tokens are cut into two sets by turns,
// and those of the first that are most similar to one of the second become part of it.
//
// Nothing of the C++ library is used: the linker would keep one instruction set's code of its templates for all.
#pragma once

#include "attention.h"
#include "performer.h"

namespace milkweed {
namespace ISA {

// The rows of one image that a merge reads, and what it keeps of them meanwhile.
struct Merging {
  const char* qkv;
  long ld, ld_stream;
  const char* stream;
  const float* sizes;
  int patches, first, second, padded;  // tokens behind the prefix, of each set, of the second in whole vectors
  float* keys;                         // (width, padded) of the second set, each of length 1
  float* key;                          // one key
  float* taken;                        // by token of the first set: what the class token's attention takes off
  float* similarity;
  int *nearest, *gone;
};

// The mean of a token's keys over the heads.
static inline void mean_key(const Step& s, const char* row, float* out) {
  const char* k = row + 2L * s.heads * s.width;
  for (int c = 0; c < s.width; c += kLanes) {
    f32x16 total{};
    for (int h = 0; h < s.heads; h++) total += from_bf16(load<u16x16>(k + 2L * (h * s.width + c)));
    store(out + c, total);
  }
  f32x16 squares{};
  for (int c = 0; c < s.width; c += kLanes) squares += load<f32x16>(out + c) * load<f32x16>(out + c);
  const float length = __builtin_sqrtf(sum(squares)), rate = length > 1e-12f ? 1 / length : 0;
  for (int c = 0; c < s.width; c += kLanes) store(out + c, load<f32x16>(out + c) * rate);
}

// How much the class token attends to each token of the first set, times what protects them; 0 without a class token.
static void class_attention(const Step& s, Merging& m) {
  for (int i = 0; i < m.first; i++) m.taken[i] = 0;
  if (s.protect == 0) return;
  float* scores = m.keys;  // not needed yet
  for (int h = 0; h < s.heads; h++) {
    const char* q = m.qkv + 2L * h * s.width;
    float top = -1e30f, total = 0;
    for (int i = 0; i < s.rows; i++) {
      const char* k = m.qkv + i * m.ld + 2L * (s.heads + h) * s.width;
      f32x16 products{};
      for (int c = 0; c < s.width; c += kLanes)
        products = fma(from_bf16(load<u16x16>(q + 2 * c)), from_bf16(load<u16x16>(k + 2 * c)), products);
      scores[i] = sum(products) + (s.weighted ? __builtin_log2f(m.sizes[i]) : 0);
      top = scores[i] > top ? scores[i] : top;
    }
    for (int i = 0; i < s.rows; i++) total += scores[i] = __builtin_exp2f(scores[i] - top);
    const float rate = s.protect * m.patches / (s.heads * total);
    for (int i = 0; i < m.first; i++) m.taken[i] += rate * scores[s.prefix + 2 * i];
  }
}

// The most similar token of the second set for each of the first.
static void match(const Step& s, Merging& m) {
  for (int j = 0; j < m.second; j++) {
    mean_key(s, m.qkv + (s.prefix + 2 * j + 1) * m.ld, m.key);
    for (int c = 0; c < s.width; c++) m.keys[(long)c * m.padded + j] = m.key[c];
  }
  for (int i = 0; i < m.first; i++) {
    mean_key(s, m.qkv + (s.prefix + 2 * i) * m.ld, m.key);
    m.similarity[i] = -2;
    m.nearest[i] = 0;  // numbers that are not finite choose nothing
    for (int j = 0; j < m.second; j += kLanes) {
      f32x16 products{};
      for (int c = 0; c < s.width; c++) products = fma(all(m.key[c]), load<f32x16>(m.keys + (long)c * m.padded + j), products);
      for (int lane = 0; lane < kLanes && j + lane < m.second; lane++)
        if (products[lane] > m.similarity[i]) {
          m.similarity[i] = products[lane];
          m.nearest[i] = j + lane;
        }
    }
    m.similarity[i] -= m.taken[i];
    if (!(m.similarity[i] >= -1e30f)) m.similarity[i] = -1e30f;  // or more tokens than were asked for would vanish
  }
}

// Which tokens of the first set vanish: the most similar ones, of equal ones the first.
static void choose(const Step& s, Merging& m) {
  for (int i = 0; i < m.first; i++) {
    int before = 0;
    for (int j = 0; j < i; j++) before += m.similarity[j] >= m.similarity[i];
    for (int j = i + 1; j < m.first; j++) before += m.similarity[j] > m.similarity[i];
    m.gone[i] = before < s.merged;
  }
}

// Writes what is left: the prefix, the first set's in their own order, the second set's with what became part of them.
static void write_merged(const Step& s, const Merging& m, float* stream, float* sizes) {
  const int n = s.channels;
  const auto size_of = [&](int token) { return s.weighted ? m.sizes[token] : 1.0f; };
  int to = 0;
  const auto keep = [&](int token) {
    memcpy(stream + (long)to * n, m.stream + token * m.ld_stream, 4L * n);
    sizes[to++] = size_of(token);
  };
  for (int i = 0; i < s.prefix; i++) keep(i);
  for (int i = 0; i < m.first; i++)
    if (!m.gone[i]) keep(s.prefix + 2 * i);
  const int second = to;
  for (int j = 0; j < m.second; j++) keep(s.prefix + 2 * j + 1);
  for (int i = 0; i < m.first; i++)
    if (m.gone[i]) sizes[second + m.nearest[i]] += size_of(s.prefix + 2 * i);
  for (int j = 0; j < m.second; j++) {
    const float share = size_of(s.prefix + 2 * j + 1) / sizes[second + j];
    float* row = stream + (long)(second + j) * n;
    if (share != 1)
      for (int c = 0; c < n; c += kLanes) store(row + c, load<f32x16>(row + c) * share);
  }
  for (int i = 0; i < m.first; i++) {
    if (!m.gone[i]) continue;
    const int token = s.prefix + 2 * i, into = second + m.nearest[i];
    const f32x16 share = all(size_of(token) / sizes[into]);
    for (int c = 0; c < n; c += kLanes) {
      float* at = stream + (long)into * n + c;
      store(at, fma(load<f32x16>(m.stream + token * m.ld_stream + 4 * c), share, load<f32x16>(at)));
    }
  }
}

static void run_merge(const Program& p, const Step& s, char* arena) {
  const Buffer* b = p.buffers + s.first_buffer;
  Merging m;
  m.ld = b[0].row_bytes;
  m.patches = s.rows - s.prefix;
  m.first = (m.patches + 1) / 2;
  m.second = m.patches / 2;
  m.padded = up_to(m.second, kLanes);
  m.keys = (float*)(arena + s.scratch);
  m.key = m.keys + ((long)s.width * m.padded > s.rows ? (long)s.width * m.padded : s.rows);
  m.taken = m.key + s.width;
  m.similarity = m.taken + m.first;
  m.nearest = (int*)(m.similarity + m.first);
  m.gone = m.nearest + m.first;
  const auto at = [&](int place) { return arena + b[place].offset; };
  m.qkv = at(0);
  m.stream = at(1);
  m.ld_stream = b[1].row_bytes;
  m.sizes = (const float*)at(4);
  class_attention(s, m);
  match(s, m);
  choose(s, m);
  write_merged(s, m, (float*)at(2), (float*)at(3));
}

}  // namespace ISA
}  // namespace milkweed
