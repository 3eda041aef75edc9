// Fused stages: a tile of rows goes through all stages of a step before the next tile does, so that what lies between them
// stays in the core's own caches. A convolution is im2col of the tile's pixels, then a linear layer. A grid is a feature map
// in NHWC: its tokens, row by row.
#pragma once

#include "rows.h"
#include "team.h"

namespace milkweed {
namespace ISA {

// Copies `bytes` a V at a time, rounded up to whole V; with LOOPS = false a single V.
template <class V, bool LOOPS>
static inline void copy_bytes(char* to, const char* from, int bytes) {
  store(to, load<V>(from));
  if constexpr (LOOPS)
    for (int i = sizeof(V); i < bytes; i += sizeof(V)) store(to + i, load<V>(from + i));
}

// The taps of output pixels `first` to `first + rows`: by block, then by tap, `inputs` bytes of the grid's pixel there, or of
// the row that stands for padding. Copies run past a tap's end, and the next tap overwrites that.
template <class V, bool LOOPS>
static void im2col(const Stage& stage, const char* base, const char* grid, long ld, char* to, long ld_to, int first, int rows,
                   bool contiguous) {
  const Stage s = stage;  // a copy, since for the compiler the byte stores below may alias `stage`
  const char* pad_values = base + s.pad_values;
  const int extent = (s.kernel - 1) * s.dilation;
  const int copies = contiguous ? 1 : s.kernel, bytes = contiguous ? s.kernel * s.inputs : s.inputs;
  for (int r = first; r < first + rows; r++, to += ld_to) {
    const int top = r / s.across * s.stride - s.padding, left = r % s.across * s.stride - s.padding;
    const bool inside = top >= 0 && top + extent < s.side && left >= 0 && left + extent < s.side;
    char* out = to;
    for (int block = 0; block < s.blocks; block++)
      for (int i = 0, y = top; i < s.kernel; i++, y += s.dilation) {
        const char* from = grid + ((long)y * s.side + left) * ld + (long)block * s.inputs;
        if (inside) {
          for (int j = 0; j < copies; j++, out += bytes, from += s.dilation * ld) copy_bytes<V, LOOPS>(out, from, bytes);
        } else {
          for (int j = 0, x = left; j < s.kernel; j++, x += s.dilation, out += s.inputs, from += s.dilation * ld) {
            const bool exists = y >= 0 && y < s.side && x >= 0 && x < s.side;
            copy_bytes<V, LOOPS>(out, exists ? from : pad_values + (long)block * s.inputs, s.inputs);
          }
        }
      }
  }
}

static void im2col(const Stage& s, const char* base, const char* grid, long ld, char* to, long ld_to, int first, int rows) {
  const bool contiguous = s.dilation == 1 && ld == s.inputs;  // the taps of a line are adjacent in memory
  if (s.inputs % 64 == 0) im2col<f32x16, true>(s, base, grid, ld, to, ld_to, first, rows, contiguous);
  else if (s.inputs > 16 || contiguous) im2col<u8x16, true>(s, base, grid, ld, to, ld_to, first, rows, contiguous);
  else im2col<u8x16, false>(s, base, grid, ld, to, ld_to, first, rows, contiguous);
}

// Casts float32 rows to a type, times a scale, plus a bias.
template <int TO>
static void cast(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  const float *scale = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  const int32_t* columns = (const int32_t*)(base + s.out_columns);
  const int groups = kLanes / s.group;
  for (int r = 0; r < rows; r++, from += ld_from, to += ld_to)
    for (int c = 0; c < s.inputs; c += kLanes)
      scatter_as<TO>(to, columns + c / kLanes * groups, s.group,
                     fma(load<f32x16>((const float*)from + c), load<f32x16>(scale + c), load<f32x16>(bias + c)));
}

// SiLU of the first `inputs` float32 columns, times as many behind them, cast to a type.
template <int TO>
static void glu(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  const float *scale = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  const int32_t* columns = (const int32_t*)(base + s.out_columns);
  const int groups = kLanes / s.group;
  for (int r = 0; r < rows; r++, from += ld_from, to += ld_to)
    for (int c = 0; c < s.inputs; c += kLanes) {
      const float* x = (const float*)from + c;
      const f32x16 gated = silu(load<f32x16>(x)) * load<f32x16>(x + s.inputs);
      scatter_as<TO>(to, columns + c / kLanes * groups, s.group, fma(gated, load<f32x16>(scale + c), load<f32x16>(bias + c)));
    }
}

// Casts float32 columns to bfloat16, those of the first heads rotated: each of a head's first half with one of its second.
static void rotate(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int first, int rows) {
  const int32_t* columns = (const int32_t*)(base + s.out_columns);
  const int groups = kLanes / s.group, half = s.outputs / 2;
  const float* angles = (const float*)(base + s.weights) + (long)first * s.across * s.outputs;
  const auto put = [&](int c, f32x16 v) { scatter(to, columns + c / kLanes * groups, s.group, to_bf16(v)); };
  for (int r = 0; r < rows; r++, from += ld_from, to += ld_to, angles += s.across * s.outputs) {
    const float* x = (const float*)from;
    for (int head = 0; head < s.blocks; head++)
      for (int i = 0; i < half; i += kLanes) {
        const float* angle = angles + head % s.across * s.outputs + i;
        const int c = head * s.outputs + i;
        const f32x16 cos = load<f32x16>(angle), sin = load<f32x16>(angle + half);
        const f32x16 a = load<f32x16>(x + c), b = load<f32x16>(x + c + half);
        put(c, fma(a, cos, -(b * sin)));
        put(c + half, fma(b, cos, a * sin));
      }
    for (int c = s.blocks * s.outputs; c < s.inputs; c += kLanes) put(c, load<f32x16>(x + c));
  }
}

// Copies rows of a table, joined, to those of the tile, or rows of the tile to those of a table.
static void copy_rows(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int first, int rows) {
  const int32_t* others = (const int32_t*)(base + s.out_columns) + (long)first * s.kernel;
  for (int r = 0; r < rows; r++, others += s.kernel) {
    if (s.action == kScatter) memcpy(to + others[0] * ld_to, from + r * ld_from, s.inputs);
    else
      for (int i = 0; i < s.kernel; i++) memcpy(to + r * ld_to + (long)i * s.inputs, from + others[i] * ld_from, s.inputs);
  }
}

static void run_stage(const Stage& s, const char* base, const char* from, long ld_from, char* to, long ld_to, int rows) {
  if (s.action == kNorm) {
    if (s.type == kU8) return norm<kU8>(s, base, from, ld_from, to, ld_to, rows);
    if (s.type == kBF16) return norm<kBF16>(s, base, from, ld_from, to, ld_to, rows);
    return norm<kF32>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.action == kCast) {
    if (s.type == kU8) return cast<kU8>(s, base, from, ld_from, to, ld_to, rows);
    if (s.type == kF32) return cast<kF32>(s, base, from, ld_from, to, ld_to, rows);
    return cast<kBF16>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.action == kAddBf16) {
    const int32_t* columns = (const int32_t*)(base + s.out_columns);
    for (int r = 0; r < rows; r++, from += ld_from, to += ld_to)
      for (int c = 0; c < s.inputs; c += kLanes)
        scatter_add(to, columns + c / s.group, s.group, (f32x16)(zero_extend(load<u16x16>(from + 2 * c)) << 16));
    return;
  }
  if (s.action == kGlu) {
    if (s.type == kU8) return glu<kU8>(s, base, from, ld_from, to, ld_to, rows);
    if (s.type == kF32) return glu<kF32>(s, base, from, ld_from, to, ld_to, rows);
    return glu<kBF16>(s, base, from, ld_from, to, ld_to, rows);
  }
  if (s.type == kU8) linear<I8>(s, base, from, ld_from, to, ld_to, rows);
  else linear<BF16>(s, base, from, ld_from, to, ld_to, rows);
}

constexpr int kSharedRows = 16;  // rows that stay together, so that few microkernels compute more rows than there are

// All stages of a step, tile by tile.
static void run_rows(const Program& p, const Step& step, const char* base, char* arena, const Member& member) {
  const Buffer* buffers = p.buffers + step.first_buffer;
  const Member::Share mine = member.share(step.rows, step.whole ? step.rows : kSharedRows);
  for (int r = mine.first; r < mine.last; r += step.tile) {
    const int rows = mine.last - r < step.tile ? mine.last - r : step.tile;
    for (int i = 0; i < step.stages; i++) {
      const Stage& s = p.stages[step.first_stage + i];
      const Buffer &a = buffers[s.from], &b = buffers[s.to];
      const auto at = [&](const Buffer& buffer, int row) {
        return buffer.in_arena ? arena + buffer.offset + row * buffer.row_bytes : member.memory + buffer.offset;
      };
      if (s.action == kIm2col) im2col(s, base, at(a, 0), a.row_bytes, at(b, r), b.row_bytes, r, rows);
      else if (s.action == kGather || s.action == kScatter)
        copy_rows(s, base, at(a, s.action == kGather ? 0 : r), a.row_bytes, at(b, s.action == kGather ? r : 0), b.row_bytes, r, rows);
      else if (s.action == kRotate) rotate(s, base, at(a, r), a.row_bytes, at(b, r), b.row_bytes, r, rows);
      else run_stage(s, base, at(a, r), a.row_bytes, at(b, r), b.row_bytes, rows);
    }
  }
}

// An image as it comes: normalised float32 (3, pixels), or 8-bit levels (pixels, 4), whose fourth byte means nothing, and the
// mean and the standard deviation of each colour.
struct Picture {
  const void* data;
  const float* normal;

  // `count` values of a colour from a pixel on, 16 at most, then zeros, or what zero levels are. Divides as NumPy does, to the bit.
  __attribute__((always_inline)) f32x16 values(int colour, long first, long count, long pixels) const {
    const void* from = (const char*)data + 4 * (normal ? first : colour * pixels + first);
    i32x16 v{};
    if (count < kLanes) memcpy(&v, from, 4 * count);
    else v = load<i32x16>(from);
    if (!normal) return (f32x16)v;
    const f32x16 level = to_f32((v >> (8 * colour)) & (i32x16{} + 255));
    return divide(divide(level, 255.0f) - set1(normal[colour]), normal[3 + colour]);
  }
};

// An image as pixels of TO, `ld` bytes apart.
template <int TO>
static void to_pixels(const Step& s, const float* scale, const float* bias, const Picture& picture, char* to, long ld,
                      const Member& member) {
  constexpr int bytes = TO == kU8 ? 1 : 2;
  const long pixels = (long)s.side * s.side;
  const Member::Share mine = member.share(pixels, kLanes);
  for (long i = mine.first; i < mine.last; i += kLanes) {
    const int count = pixels - i < kLanes ? pixels - i : kLanes;
    char colours[3][2 * kLanes];
    for (int c = 0; c < 3; c++) {
      const f32x16 v = fma(picture.values(c, i, count, pixels), set1(scale[c]), set1(bias[c]));
      if constexpr (TO == kU8) store(colours[c], to_u8(v));
      else store(colours[c], to_bf16(v));
    }
    for (int j = 0; j < count; j++)
      for (int c = 0; c < 3; c++) memcpy(to + (i + j) * ld + c * bytes, colours[c] + j * bytes, bytes);
  }
}

static void run_pixels(const Program& p, const Step& s, const char* base, char* arena, const Picture& picture,
                       const Member& member) {
  const Buffer& grid = p.buffers[s.first_buffer];
  const float *scale = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  if (s.to_type == kU8) to_pixels<kU8>(s, scale, bias, picture, arena + grid.offset, grid.row_bytes, member);
  else to_pixels<kBF16>(s, scale, bias, picture, arena + grid.offset, grid.row_bytes, member);
}

// A depthwise convolution of float32 rows, line by line. The lines that are read are copied, sixteen channels side by side, with
// zeros at both ends: in the stream those of one channel lie a whole row apart, in the same few sets of the cache.
constexpr int kAcross = 7;      // outputs side by side, which share a weight
constexpr int kMaxKernel = 31;  // shape_checks.py allows no larger one

// Sixteen channels of kAcross outputs from `x` on. `lines` has the line of each tap, nullptr where it is outside.
static inline void add_taps(const float* const* lines, int kernel, int x, const float* weight, const float* bias, float* sums) {
  for (int half = 0; half < kLanes; half += kNativeLanes) {
    native_f32 sum[kAcross];
    for (native_f32& v : sum) v = load<native_f32>(bias + half);
    for (int tap = 0; tap < kernel; tap++) {
      if (!lines[tap]) continue;
      const float *pixel = lines[tap] + x * kLanes + half, *w = weight + (long)tap * kernel * kLanes + half;
      for (int i = 0; i < kernel; i++, pixel += kLanes, w += kLanes) {
        const native_f32 v = load<native_f32>(w);
#pragma GCC unroll 7
        for (int j = 0; j < kAcross; j++) sum[j] = fma(load<native_f32>(pixel + j * kLanes), v, sum[j]);
      }
    }
#pragma GCC unroll 7
    for (int j = 0; j < kAcross; j++) store(sums + j * kLanes + half, sum[j]);
  }
}

static void run_depthwise(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer &in = p.buffers[s.first_buffer], &out = p.buffers[s.first_buffer + 1];
  const int side = s.side, kernel = s.patch, edge = kernel / 2;
  const long pitch = (side + kernel + kAcross) * kLanes, line_size = s.channels / kLanes * pitch;
  float* copies = (float*)(member.memory + s.scratch);
  const float *weights = (const float*)(base + s.start), *biases = (const float*)(base + s.bias), *lines[kMaxKernel];
  const Member::Share mine = member.share(side);
  if (mine.first == mine.last) return;
  memset(copies, 0, 4 * kernel * line_size);
  for (int y = mine.first - edge; y < mine.last + edge; y++) {
    if (y >= 0 && y < side)
      for (int x = 0; x < side; x++)
        for (int c = 0; c < s.channels; c += kLanes)
          store(copies + y % kernel * line_size + c / kLanes * pitch + (x + edge) * kLanes,
                load<f32x16>(arena + in.offset + ((long)y * side + x) * in.row_bytes + 4L * c));
    if (y < mine.first + edge) continue;
    char* to = arena + out.offset + (long)(y - edge) * side * out.row_bytes;
    for (int c = 0; c < s.channels; c += kLanes) {
      for (int tap = 0, at = y - 2 * edge; tap < kernel; tap++, at++)
        lines[tap] = at >= 0 && at < side ? copies + at % kernel * line_size + c / kLanes * pitch : nullptr;
      for (int x = 0; x < side; x += kAcross) {
        alignas(64) float sums[kAcross * kLanes];
        add_taps(lines, kernel, x, weights + (long)c * kernel * kernel, biases + c, sums);
        for (int j = 0; j < kAcross && x + j < side; j++)
          store(to + (x + j) * out.row_bytes + 4L * c, load<f32x16>(sums + j * kLanes));
      }
    }
  }
}

// The sum of the squares of each channel of buffer 0's rows, float32, to buffer 1: members share channels, so that each sum has
// one order.
static void run_squares(const Program& p, const Step& s, char* arena, const Member& member) {
  const Buffer &in = p.buffers[s.first_buffer], &out = p.buffers[s.first_buffer + 1];
  float* sums = (float*)(arena + out.offset);
  const Member::Share mine = member.share(s.channels, kLanes);
  for (int c = mine.first; c < mine.last; c += kLanes) store(sums + c, f32x16{});
  for (int r = 0; r < s.rows; r++) {
    const float* row = (const float*)(arena + in.offset + r * in.row_bytes);
    for (int c = mine.first; c < mine.last; c += kLanes) {
      const f32x16 v = load<f32x16>(row + c);
      store(sums + c, fma(v, v, load<f32x16>(sums + c)));
    }
  }
}

// A global response norm of buffer 0's rows, in place, by the sums of squares in buffer 1.
static void run_response_norm(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer &rows = p.buffers[s.first_buffer], &squares = p.buffers[s.first_buffer + 1];
  const float *weight = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  const float* sums = (const float*)(arena + squares.offset);
  float *factors = (float*)(member.memory + s.scratch), total = 0;
  for (int c = 0; c < s.channels; c++) total += factors[c] = __builtin_sqrtf(sums[c]);
  const float mean = total / s.channels + s.epsilon;
  for (int c = 0; c < s.channels; c++) factors[c] = 1 + weight[c] * factors[c] / mean;
  const Member::Share mine = member.share(s.rows);
  for (int r = mine.first; r < mine.last; r++) {
    float* row = (float*)(arena + rows.offset + r * rows.row_bytes);
    for (int c = 0; c < s.channels; c += kLanes)
      store(row + c, fma(load<f32x16>(row + c), load<f32x16>(factors + c), load<f32x16>(bias + c)));
  }
}

}  // namespace ISA
}  // namespace milkweed
