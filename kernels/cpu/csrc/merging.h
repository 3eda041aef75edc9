// Token Merging (arXiv 2210.09461, section 3): bipartite soft matching. Patch tokens are alternately sources and
// destinations, and the sources that are most similar to a destination are averaged into it.
//
// No functions of the C++ library: the linker would keep one copy of a template, of one instruction set, for all.
#pragma once

#include "attention.h"
#include "performer.h"

namespace milkweed {
namespace ISA {

// What a merge of one image reads, and its working memory.
struct MergeState {
  const char* qkv;
  long ld, ld_stream;
  const char* stream;
  const float* sizes;
  int patches, sources, destinations, padded;  // tokens behind the prefix; destinations in whole vectors
  float* keys;                                 // (width, padded), of the destinations, normalised to length 1
  float* key;                                  // one source's
  float* protection;                           // (sources,): subtracted from similarity
  float* similarity;                           // (sources,): to the nearest destination
  int *nearest, *merged;                       // (sources,): the nearest destination; whether it is merged into that
};

// The mean of a token's keys over the heads, normalised to length 1.
static inline void mean_key(const Step& s, const char* row, float* out) {
  const char* k = row + 2L * s.heads * s.width;
  for (int c = 0; c < s.width; c += kLanes) {
    f32x16 total{};
    for (int h = 0; h < s.heads; h++) total += from_bf16(load<u16x16>(k + 2L * (h * s.width + c)));
    store(out + c, total);
  }
  f32x16 squares{};
  for (int c = 0; c < s.width; c += kLanes) squares += load<f32x16>(out + c) * load<f32x16>(out + c);
  const float length = __builtin_sqrtf(reduce_add(squares)), inverse_length = length > 1e-12f ? 1 / length : 0;
  for (int c = 0; c < s.width; c += kLanes) store(out + c, load<f32x16>(out + c) * inverse_length);
}

// Protection of each source: the class token's attention to it, times `protect`.
static void class_attention(const Step& s, MergeState& m) {
  for (int i = 0; i < m.sources; i++) m.protection[i] = 0;
  if (s.protect == 0) return;
  float* scores = m.keys;  // not needed yet
  for (int h = 0; h < s.heads; h++) {
    const char* q = m.qkv + 2L * h * s.width;
    float peak = -1e30f, total = 0;
    for (int i = 0; i < s.rows; i++) {
      const char* k = m.qkv + i * m.ld + 2L * (s.heads + h) * s.width;
      f32x16 products{};
      for (int c = 0; c < s.width; c += kLanes)
        products = fma(from_bf16(load<u16x16>(q + 2 * c)), from_bf16(load<u16x16>(k + 2 * c)), products);
      scores[i] = reduce_add(products) + (s.weighted ? __builtin_log2f(m.sizes[i]) : 0);
      peak = scores[i] > peak ? scores[i] : peak;
    }
    for (int i = 0; i < s.rows; i++) total += scores[i] = __builtin_exp2f(scores[i] - peak);
    const float rate = s.protect * m.patches / (s.heads * total);
    for (int i = 0; i < m.sources; i++) m.protection[i] += rate * scores[s.prefix + 2 * i];
  }
}

// The keys of this member's share of the destinations.
static void place_keys(const Step& s, MergeState& m, const Member& member) {
  const Member::Share mine = member.share(m.destinations, kLanes);
  for (int j = mine.first; j < mine.last; j++) {
    mean_key(s, m.qkv + (s.prefix + 2 * j + 1) * m.ld, m.key);
    for (int c = 0; c < s.width; c++) m.keys[(long)c * m.padded + j] = m.key[c];
  }
}

// The most similar destination of each source, of this member's share.
static void match_tokens(const Step& s, MergeState& m, const Member& member) {
  const Member::Share mine = member.share(m.sources);
  for (int i = mine.first; i < mine.last; i++) {
    mean_key(s, m.qkv + (s.prefix + 2 * i) * m.ld, m.key);
    m.similarity[i] = -2;
    m.nearest[i] = 0;  // where nothing is finite
    for (int j = 0; j < m.destinations; j += kLanes) {
      f32x16 products{};
      for (int c = 0; c < s.width; c++)
        products = fma(set1(m.key[c]), load<f32x16>(m.keys + (long)c * m.padded + j), products);
      for (int lane = 0; lane < kLanes && j + lane < m.destinations; lane++)
        if (products[lane] > m.similarity[i]) {
          m.similarity[i] = products[lane];
          m.nearest[i] = j + lane;
        }
    }
    m.similarity[i] -= m.protection[i];
    if (!(m.similarity[i] >= -1e30f)) m.similarity[i] = -1e30f;  // NaN would merge more tokens than asked for
  }
}

// Selects the `merged` most similar sources, of equal ones the first.
static void select_merged(const Step& s, MergeState& m) {
  for (int i = 0; i < m.sources; i++) {
    int before = 0;
    for (int j = 0; j < i; j++) before += m.similarity[j] >= m.similarity[i];
    for (int j = i + 1; j < m.sources; j++) before += m.similarity[j] > m.similarity[i];
    m.merged[i] = before < s.merged;
  }
}

// Writes the prefix, the sources that stay, then the destinations: means, by size, with the sources merged into them.
static void write_merged(const Step& s, const MergeState& m, float* stream, float* sizes) {
  const int n = s.channels;
  const auto size_of = [&](int token) { return s.weighted ? m.sizes[token] : 1.0f; };
  int to = 0;
  const auto copy_token = [&](int token) {
    memcpy(stream + (long)to * n, m.stream + token * m.ld_stream, 4L * n);
    sizes[to++] = size_of(token);
  };
  for (int i = 0; i < s.prefix; i++) copy_token(i);
  for (int i = 0; i < m.sources; i++)
    if (!m.merged[i]) copy_token(s.prefix + 2 * i);
  const int first_destination = to;
  for (int j = 0; j < m.destinations; j++) copy_token(s.prefix + 2 * j + 1);
  for (int i = 0; i < m.sources; i++)
    if (m.merged[i]) sizes[first_destination + m.nearest[i]] += size_of(s.prefix + 2 * i);
  for (int j = 0; j < m.destinations; j++) {
    const float weight = size_of(s.prefix + 2 * j + 1) / sizes[first_destination + j];
    float* row = stream + (long)(first_destination + j) * n;
    if (weight != 1)
      for (int c = 0; c < n; c += kLanes) store(row + c, load<f32x16>(row + c) * weight);
  }
  for (int i = 0; i < m.sources; i++) {
    if (!m.merged[i]) continue;
    const int token = s.prefix + 2 * i, into = first_destination + m.nearest[i];
    const f32x16 weight = set1(size_of(token) / sizes[into]);
    for (int c = 0; c < n; c += kLanes) {
      float* at = stream + (long)into * n + c;
      store(at, fma(load<f32x16>(m.stream + token * m.ld_stream + 4 * c), weight, load<f32x16>(at)));
    }
  }
}

static void run_merge(const Program& p, const Step& s, char* arena, const Member& member) {
  const Buffer* b = p.buffers + s.first_buffer;
  MergeState m;
  m.ld = b[0].row_bytes;
  m.patches = s.rows - s.prefix;
  m.sources = (m.patches + 1) / 2;
  m.destinations = m.patches / 2;
  m.padded = round_up(m.destinations, kLanes);
  m.keys = (float*)(arena + s.scratch);
  const long room = (long)s.width * m.padded > s.rows ? (long)s.width * m.padded : s.rows;
  m.key = (float*)(member.memory + s.scratch) + room;
  m.protection = m.keys + room + s.width;
  m.similarity = m.protection + m.sources;
  m.nearest = (int*)(m.similarity + m.sources);
  m.merged = m.nearest + m.sources;
  const auto at = [&](int place) { return arena + b[place].offset; };
  m.qkv = at(0);
  m.stream = at(1);
  m.ld_stream = b[1].row_bytes;
  m.sizes = (const float*)at(4);
  if (member.number == 0) class_attention(s, m);
  member.wait();
  place_keys(s, m, member);
  member.wait();
  match_tokens(s, m, member);
  member.wait();
  if (member.number > 0) return;
  select_merged(s, m);
  write_merged(s, m, (float*)at(2), (float*)at(3));
}

// Repeats the rows of buffer 0 by their sizes.
static void run_unmerge(const Program& p, const Step& s, char* arena) {
  const Buffer *b = p.buffers + s.first_buffer, &out = b[2];
  const int end = s.rows + s.merged;
  for (int row = 0, to = 0; row < s.rows; row++)
    for (int size = (int)*(const float*)(arena + b[1].offset + row * b[1].row_bytes); size > 0 && to < end; size--, to++)
      memcpy(arena + out.offset + to * out.row_bytes, arena + b[0].offset + row * b[0].row_bytes, 4L * s.channels);
}

}  // namespace ISA
}  // namespace milkweed
