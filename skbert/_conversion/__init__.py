"""TensorFlow checkpoints of BERT to model folders, without TensorFlow."""
