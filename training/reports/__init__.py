"""Reports on a fit: errors of predictions, TensorBoard, figures, warnings, evaluations on unseen recordings."""
