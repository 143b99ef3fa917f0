"""The record of a run: files, console and TensorBoard, and the history of its events."""
