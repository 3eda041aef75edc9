"""Jobs are the offline work on bundles with folders of images: compress, convert, train and evaluate."""
