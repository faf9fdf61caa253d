"""How a broker follows the cluster's image: images in order, and the one way from an image to its effects."""
