"""The decoders: encoded images to pixels, with Pillow, simplejpeg or NVIDIA DALI, and arrays as they are."""
