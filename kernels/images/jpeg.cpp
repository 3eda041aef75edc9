// Decodes the part of a JPEG that a crop is made of, by libjpeg-turbo, whose rows and columns outside it become no pixels.
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or newer is taken: older ones have no such crop, or other bits for 4:4:0"
#endif

#define MILKWEED_EXPORT extern "C" __attribute__((visibility("default")))

// Of a picture of width x height px, as its header says, what lies in the box.
struct Part {
  int32_t width, height, left, top, right, bottom;
};

struct Errors {
  jpeg_error_mgr base;
  jmp_buf out;
};

static void give_up(j_common_ptr decoder) { longjmp(((Errors*)decoder->err)->out, 1); }

static void refuse_warning(j_common_ptr decoder, int level) {
  if (level < 0) give_up(decoder);
}

static void ignore(j_common_ptr) {}

// Decodes at 1/scale of the size, in whose pixels the part is told, to RGB rows one after the other. The part begins further left
// afterwards, where an MCU does. All coded data are read, those behind the part too, for damage.
// Returns whether all is sound: no error, no warning, the size that the part says, and no more than `capacity` bytes.
MILKWEED_EXPORT bool milkweed_decode_jpeg(const uint8_t* data, size_t size, int scale, Part* part, uint8_t* out,
                                          size_t capacity) {
  jpeg_decompress_struct decoder;
  Errors errors = {};  // not by jpeg_std_error: it writes to stderr, which Debian's static library cannot do in a shared one
  errors.base.error_exit = give_up;
  errors.base.emit_message = refuse_warning;
  errors.base.output_message = errors.base.reset_error_mgr = ignore;
  decoder.err = &errors.base;
  if (setjmp(errors.out)) {
    jpeg_destroy_decompress(&decoder);
    return false;
  }
  jpeg_create_decompress(&decoder);
  jpeg_mem_src(&decoder, (unsigned char*)data, size);
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space = JCS_RGB;
  decoder.scale_num = 1;
  decoder.scale_denom = scale;
  jpeg_start_decompress(&decoder);
  if ((int)decoder.output_width != part->width || (int)decoder.output_height != part->height) give_up((j_common_ptr)&decoder);
  JDIMENSION left = part->left, columns = part->right - part->left;
  jpeg_crop_scanline(&decoder, &left, &columns);
  const size_t row_bytes = 3 * (size_t)columns;
  if (row_bytes * (part->bottom - part->top) > capacity) give_up((j_common_ptr)&decoder);
  if (part->top > 0) jpeg_skip_scanlines(&decoder, part->top);
  for (JSAMPROW row = out; (int)decoder.output_scanline < part->bottom;) row += row_bytes * jpeg_read_scanlines(&decoder, &row, 1);
  if (part->bottom < part->height) {  // skipping to the end would read nothing: so the last row is decoded
    JSAMPARRAY last = decoder.mem->alloc_sarray((j_common_ptr)&decoder, JPOOL_IMAGE, row_bytes, 1);
    if (part->bottom < part->height - 1) jpeg_skip_scanlines(&decoder, part->height - 1 - part->bottom);
    jpeg_read_scanlines(&decoder, last, 1);
  }
  jpeg_finish_decompress(&decoder);
  jpeg_destroy_decompress(&decoder);
  part->left = left;
  return true;
}
