"""Models as ONNX files: written of plain operations, checked, run by ONNX Runtime."""
