"""What a fit is judged by: errors of predictions, TensorBoard, figures, recordings never seen."""
