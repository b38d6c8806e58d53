"""Import the methods of gRPC services from descriptor sets."""
